"""The manifest of a backup: which objects hold what. It is written last, so an object that it does not name is not part of the
backup.

Event files and message files that nothing writes to any more are objects as a whole. Of one that is still written to, or not
sorted yet, the backup has its records in the order in which they were appended, as one or several pieces. A whole file
supersedes its pieces.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue, Tree
from eventstore.chunks.header import EVENTS, MESSAGES, RECORDS_FROM, ChunkHeader, decode_header
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.event_identity import LogPosition

FORMAT: Final = 1
MANIFEST: Final = "backup.json"
FOLDERS: Final = {EVENTS: "events", MESSAGES: "messages"}
PIECES_MAX: Final = 32
"""Of one file. Then its records are copied from the first one again, so that many small backups leave few objects."""


@dataclass(frozen=True, slots=True)
class BackedPiece:
    """Records of a file, from byte `start` to byte `end` of the file as it was appended to.

    Attributes:
        object: the name of the object with these bytes.
        checksum: the sum of the records' CRCs.
        last: where the last record begins; `last_crc`: its CRC.
    """

    object: str
    start: int
    end: int
    records: int
    checksum: int
    last: int
    last_crc: int


@dataclass(frozen=True, slots=True)
class BackedFile:
    """What a backup has of a chunk file.

    Attributes:
        header: of the whole file; of pieces, that which the file had when it was begun.
        last_sequence: of the records in the backup.
        pieces: none if the file is there as a whole.
        object: the name of the object that is the whole file; empty if there are pieces.
        index: the name of the object that is the index of a sorted event file; empty: none.
    """

    header: ChunkHeader
    last_sequence: int
    pieces: tuple[BackedPiece, ...] = ()
    object: str = ""
    index: str = ""

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def end(self) -> int:
        """The byte at which its records end."""
        return self.pieces[-1].end if self.pieces else self.header.end if self.object else RECORDS_FROM

    @property
    def bytes(self) -> int:
        """The bytes of its records."""
        return self.end - RECORDS_FROM

    def objects(self) -> Iterator[str]:
        yield from (each.object for each in self.pieces)
        yield from (name for name in (self.object, self.index) if name)


@dataclass(frozen=True, slots=True)
class BackedLog:
    """The chunk files of a store or broker, without a gap.

    Attributes:
        deleted: files up to this number were deleted by retention.
    """

    store: uuid.UUID
    files: tuple[BackedFile, ...]
    deleted: int = 0

    @property
    def last_sequence(self) -> int:
        return self.files[-1].last_sequence if self.files else 0


@dataclass(frozen=True, slots=True)
class BackedDocument:
    """A document of a data folder: the object with its bytes, how many, and their SHA-256."""

    object: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackedShard:
    """A store, or the shard of a cluster.

    Attributes:
        end: the last event, by sequence and identity: where a reader may stand at most.
        time: of that event, µs since 1970.
        messages: None: the backup is without the broker.
        documents: by their path in the data folder.
    """

    end: LogPosition
    time: int
    events: BackedLog
    messages: BackedLog | None
    documents: Mapping[str, BackedDocument]

    def logs(self) -> Iterator[BackedLog]:
        yield self.events
        if self.messages is not None:
            yield self.messages

    def objects(self) -> Iterator[str]:
        for log in self.logs():
            for file in log.files:
                yield from file.objects()
        yield from (each.object for each in self.documents.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole backup.

    Attributes:
        number: how many backups were made into this place, this one included.
        taken: when its cut was taken, µs since 1970.
        shards: by number; a single store is shard 0.
        cluster: what the registry said of a cluster; None: a single store.
    """

    number: int
    taken: int
    shards: Mapping[int, BackedShard]
    cluster: Tree | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def objects(self) -> set[str]:
        """Returns the names of all objects that it needs."""
        return {name for shard in self.shards.values() for name in shard.objects()}

    def tree(self) -> Tree:
        shards: Tree = {str(number): _shard_tree(each) for number, each in sorted(self.shards.items())}
        known: Tree = {
            "cluster": self.cluster,
            "format": FORMAT,
            "number": self.number,
            "shards": shards,
            "taken": self.taken,
        }
        return {**self.unknown, **known}


def read_manifest(raw: bytes, name: str) -> Manifest:
    """Returns the manifest that these bytes are. `name`: of it, for errors.

    Raises:
        FolderRefused: of a newer format.
        Corrupt: it is damaged.
    """
    try:
        tree = json.loads(raw)
        format_ = tree["format"]
        if format_ == FORMAT:
            shards = {int(number): _shard(each, name) for number, each in tree["shards"].items()}
            unknown = {key: value for key, value in tree.items() if key not in _MEMBERS}
            return Manifest(int(tree["number"]), int(tree["taken"]), shards, tree["cluster"], unknown)
    except (EventStoreError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(name, 0, f"not the manifest of a backup ({error})") from None
    raise FolderRefused(name, f"format {format_} of a backup; this program knows format {FORMAT}. Use a newer one")


_MEMBERS: Final = ("cluster", "format", "number", "shards", "taken")


def _shard_tree(shard: BackedShard) -> Tree:
    documents: Tree = {path: [each.object, each.bytes, each.sha256] for path, each in sorted(shard.documents.items())}
    return {
        "documents": documents,
        "end": str(shard.end),
        "events": _log_tree(shard.events),
        "messages": None if shard.messages is None else _log_tree(shard.messages),
        "time": shard.time,
    }


def _log_tree(log: BackedLog) -> Tree:
    return {"deleted": log.deleted, "files": [_file_tree(each) for each in log.files], "store": str(log.store)}


def _file_tree(file: BackedFile) -> Tree:
    tree: Tree = {"header": file.header.encode().hex(), "last_sequence": file.last_sequence}
    if file.object:
        return {**tree, "object": file.object, **({"index": file.index} if file.index else {})}
    pieces: list[DocumentValue] = [
        [p.object, p.start, p.end, p.records, f"{p.checksum:016x}", p.last, p.last_crc] for p in file.pieces
    ]
    return {**tree, "pieces": pieces}


def _shard(tree: Any, name: str) -> BackedShard:
    documents = {
        str(path): BackedDocument(str(each[0]), int(each[1]), str(each[2])) for path, each in tree["documents"].items()
    }
    messages = tree["messages"]
    return BackedShard(
        LogPosition.parse("end", tree["end"]),
        int(tree["time"]),
        _log(tree["events"], EVENTS, name),
        None if messages is None else _log(messages, MESSAGES, name),
        documents,
    )


def _log(tree: Any, kind: int, name: str) -> BackedLog:
    files = tuple(_file(each, kind, name) for each in tree["files"])
    deleted = int(tree["deleted"])
    if [each.number for each in files] != list(range(deleted + 1, deleted + 1 + len(files))):
        raise ValueError("its files are not numbered without a gap")
    return BackedLog(uuid.UUID(tree["store"]), files, deleted)


def _file(tree: Any, kind: int, name: str) -> BackedFile:
    header, last = decode_header(bytes.fromhex(tree["header"]), name, kind), int(tree["last_sequence"])
    if "object" in tree:
        return BackedFile(header, last, object=str(tree["object"]), index=str(tree.get("index", "")))
    pieces = tuple(
        BackedPiece(str(name_), int(start), int(end), int(records), int(checksum, 16), int(at), int(crc))
        for name_, start, end, records, checksum, at, crc in tree["pieces"]
    )
    return BackedFile(header, last, pieces)


def with_piece(before: BackedFile | None, header: ChunkHeader, piece: BackedPiece, last_sequence: int) -> BackedFile:
    """Returns what a backup has of a file once a piece was added to what it had before."""
    if before is None:
        return BackedFile(header, last_sequence, (piece,))
    return replace(before, last_sequence=last_sequence, pieces=(*before.pieces, piece))
