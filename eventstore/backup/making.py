"""Makes a backup: compares a store with what the backup has, copies and verifies what is new, and replaces the manifest."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from eventstore.backup.indexed_copy import copied_by_index
from eventstore.backup.manifest import (
    FOLDERS,
    MANIFEST,
    PIECES_MAX,
    BackedDocument,
    BackedFile,
    BackedLog,
    BackedPiece,
    BackedShard,
    Manifest,
    read_manifest,
    with_piece,
)
from eventstore.backup.source import (
    DataSource,
    SourceFile,
    SourceLog,
    WalkedRecords,
    event_at,
    framing_of,
    position_at,
)
from eventstore.backup.steps import BackupSteps, CopyObject, ReplaceManifest
from eventstore.backup.target import SHARD_FOLDER, BackupTarget
from eventstore.chunks.documents import Tree, encoded_document
from eventstore.chunks.header import FOOTER_BYTES, RECORDS_FROM
from eventstore.chunks.record import PREFIX_BYTES, crc_at
from eventstore.chunks.scrubbing import ChunkCheck
from eventstore.errors import Diverged, EventStoreError, FolderRefused
from eventstore.event_identity import IDENTITY_DIGITS, event_identity
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_names import INDEX

_PIECE_BYTES: Final = 1024 * 1024
_NEXT_STEP: Final = "back it up to another place, and keep this one: it is the only copy of that history"


class ReadPace:
    """Bounds the bytes a second. `rate` None: as fast as possible."""

    def __init__(
        self,
        rate: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._due = clock()

    def take(self, size: int) -> None:
        """Returns when these bytes may have been read."""
        if self._rate is None:
            return
        now = self._clock()
        self._due = max(self._due, now - 1.0) + size / self._rate
        if self._due > now:
            self._sleep(self._due - now)


@dataclass(slots=True)
class Made:
    """What a backup has done.

    Attributes:
        read_bytes: of the data folders.
        copied: objects; `total_bytes`: to be copied, as known at the beginning.
    """

    total_bytes: int = 0
    read_bytes: int = 0
    copied: int = 0
    kept: int = 0
    deleted: int = 0
    manifest: Manifest | None = None
    on_progress: Callable[[Made], None] = field(default=lambda made: None, repr=False)


@dataclass(frozen=True, slots=True)
class BackupHow:
    """`link`: whole files are linked, not copied. `pace`: of reading."""

    link: bool = False
    pace: ReadPace = field(default_factory=lambda: ReadPace(None))


def make_backup(
    sources: Mapping[int, DataSource],
    target: BackupTarget,
    made: Made,
    *,
    taken: int,
    cluster: Tree | None = None,
    options: BackupHow | None = None,
    token: Callable[[], str] = lambda: secrets.token_hex(4),
) -> Manifest:
    """Makes a backup of these shards, which have taken their cuts, and returns its manifest. `taken`: when, µs since 1970.

    Raises:
        Diverged: the backup in this place has events that a store does not have.
        FolderRefused: it is of another store.
        Corrupt: what is read is damaged. The backup is left as it was.
    """
    raw = target.manifest()
    before = None if raw is None else read_manifest(raw, f"{target.name}/{MANIFEST}")
    present = target.names()
    making = _Making(target, options or BackupHow(), made, _unused(token, present))
    plans = [
        _ShardPlan(making, number, source, None if before is None else before.shards.get(number))
        for number, source in sorted(sources.items())
    ]
    if before is not None:
        _check_same(target, before, sources)
    for each in plans:
        each.compare()
    wanted = [name for each in plans for name in each.wanted()]
    steps = BackupSteps(wanted, set() if before is None else before.objects(), present)
    made.total_bytes = sum(making.sizes.get(each, 0) for each in wanted if steps.states[each].value == "wanted")
    made.kept = sum(state.value in ("named", "copied") for state in steps.states.values())
    manifest: Manifest | None = None
    while (step := steps.next()) is not None:
        match step:
            case CopyObject(name):
                making.copies[name]()
                steps.copied(name)
                made.copied += 1
            case ReplaceManifest():
                shards = {each.number: each.backed() for each in plans}
                number = 1 if before is None else before.number + 1
                unknown = {} if before is None else before.unknown
                manifest = Manifest(number, taken, shards, cluster, unknown)
                target.replace_manifest(encoded_document(manifest.tree()))
                steps.committed_manifest()
            case _:
                target.delete(step.name)
                steps.deleted(step.name)
                made.deleted += 1
        made.on_progress(made)
    assert manifest is not None
    made.manifest = manifest
    return manifest


def _unused(token: Callable[[], str], present: set[str]) -> str:
    """Draws a token that no object has: the records that an interrupted backup has left may be of another history."""
    while True:
        drawn = token()
        if not any(f"-{drawn}." in name for name in present):
            return drawn


def _check_same(target: BackupTarget, before: Manifest, sources: Mapping[int, DataSource]) -> None:
    for number, shard in before.shards.items():
        source = sources.get(number)
        if source is None:
            raise FolderRefused(target.name, f"has a backup of shard {number} too, which is not read now; name its folder")
        if source.events.folder.store != shard.events.store:
            whose = f"store {shard.events.store}, not of {source.events.folder.store}"
            raise FolderRefused(target.name, f"holds a backup of {whose}; name another place")


class _Making:
    """What all shards share: how objects are copied, by name, and how large each is."""

    def __init__(self, target: BackupTarget, options: BackupHow, made: Made, token: str) -> None:
        self.target, self.options, self.made, self.token = target, options, made, token
        self.copies: dict[str, Callable[[], None]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, name: str, size: int, copy: Callable[[], None]) -> str:
        self.copies[name], self.sizes[name] = copy, size
        return name

    def counted(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            yield part
            self.made.read_bytes += len(part)
            self.made.on_progress(self.made)
            self.options.pace.take(len(part))


class _ShardPlan:
    """What is wanted of one shard, and what is known of it once it is copied."""

    def __init__(self, making: _Making, number: int, source: DataSource, before: BackedShard | None) -> None:
        self.number, self._making, self._source, self._before = number, making, source, before
        self._end = position_at(source.events)
        logs = [(source.events, None if before is None else before.events)]
        if source.messages is not None:
            logs.append((source.messages, None if before is None else before.messages))
        self._logs = [_LogPlan(making, f"{SHARD_FOLDER}{number}", log, backed) for log, backed in logs]
        self._documents: dict[str, BackedDocument] = {}

    def compare(self) -> None:
        """Raises Diverged unless the log continues what the backup has."""
        if self._before is None or not self._before.end.sequence:
            return
        sequence, identity = self._before.end
        what, log = f"the backup in {self._making.target.name}", self._source.events
        if sequence > log.last_sequence:
            found = f"ends at {log.last_sequence}"
        elif event_identity(event_at(log, sequence))[:IDENTITY_DIGITS] == identity:
            found = ""
        else:
            found = "has another event there"
        if found:
            why = f"{what} goes up to event {sequence} of shard {self.number}, but the store {found}: it is of another history"
            raise Diverged(f"{why}; {_NEXT_STEP}", what=what, sequence=sequence)
        for each in self._logs:
            each.compare(what)

    def wanted(self) -> Iterator[str]:
        for log in self._logs:
            yield from log.wanted()
        for path, raw in self._source.documents.items():
            sha256 = hashlib.sha256(raw).hexdigest()
            name = f"{SHARD_FOLDER}{self.number}/documents/{path.replace('/', '-')}-{sha256[:16]}"
            self._documents[path] = BackedDocument(name, len(raw), sha256)
            yield self._making.add(name, len(raw), lambda name=name, raw=raw: self._making.target.put(name, [raw]))  # type: ignore[misc]

    def backed(self) -> BackedShard:
        events, *messages = (each.backed() for each in self._logs)
        end, time_us = self._end
        return BackedShard(end, time_us, events, messages[0] if messages else None, self._documents)


class _LogPlan:
    def __init__(self, making: _Making, shard: str, log: SourceLog, before: BackedLog | None) -> None:
        self._making, self._log = making, log
        self._before = (
            {} if before is None or before.store != log.folder.store else {each.number: each for each in before.files}
        )
        self._folder = f"{shard}/{FOLDERS[log.folder.kind]}"
        self._backed: dict[int, BackedFile] = {}

    def compare(self, what: str) -> None:
        """Raises Diverged if a file that the backup has is another one now."""
        for source in self._log.files:
            before = self._before.get(source.header.number)
            if before is None:
                continue
            header = source.header
            same = before.header == header if before.object and source.final else before.header == header.reopened()
            if before.object and not source.final:
                same = before.header.unsorted() == header
            if same and before.pieces and source.file is not None:
                same = self._still_there(source, before.pieces[-1])
            if not same:
                why = f"{what} has other records of {source.path.name} than the store: it is of another history"
                raise Diverged(f"{why}; {_NEXT_STEP}", what=what, sequence=before.last_sequence)

    def _still_there(self, source: SourceFile, piece: BackedPiece) -> bool:
        assert source.file is not None
        length = piece.end - piece.last
        last = source.file.read_at(piece.last, length)
        return len(last) == length >= PREFIX_BYTES and crc_at(last, 0) == piece.last_crc

    def wanted(self) -> Iterator[str]:
        for source in self._log.files:
            before = self._before.get(source.header.number)
            yield from self._whole(source, before) if source.final else self._records(source, before)

    def _whole(self, source: SourceFile, before: BackedFile | None) -> Iterator[str]:
        header = source.header
        if before is not None and before.object and before.header == header:
            self._backed[header.number] = before
            yield from before.objects()
            return
        stem = f"{self._folder}/{header.number:010d}-{header.end}-{header.checksum:016x}"
        name = f"{stem}.{self._log.folder.ending}"
        index = self._index(source, f"{stem}.{INDEX}") if header.sorted else None
        self._backed[header.number] = BackedFile(header, header.last_sequence, object=name, index=index or "")
        yield self._making.add(name, header.end + FOOTER_BYTES, lambda: self._copy_whole(name, source))
        if index is not None:
            yield index

    def _index(self, source: SourceFile, name: str) -> str | None:
        """Returns the name of the index, if there is one and all of it is sound; it is derived, and may be left out."""
        folder = self._log.folder
        path = folder.derived_path(source.header.number, INDEX)
        if self._sound_index(source) is None:
            return None

        def copy() -> None:
            file = folder.files.open(path)
            try:
                size = file.size()
                parts = (file.read_at(at, _PIECE_BYTES) for at in range(0, size, _PIECE_BYTES))
                self._making.target.put(name, self._making.counted(parts), file)
            finally:
                file.close()

        return self._making.add(name, 0, copy)

    def _copy_whole(self, name: str, source: SourceFile) -> None:
        making, folder = self._making, self._log.folder
        if making.options.link:
            making.target.link(name, source.path)
            made = ChunkCheck(making.target.files, making.target.path(name), folder.kind, framing_of(folder.kind))
            made.close()
            if made.header != source.header:
                raise _changed(source)
            return
        with ChunkCheck(folder.files, source.path, folder.kind, framing_of(folder.kind)) as check:
            if check.header != source.header:
                raise _changed(source)
            index = self._sound_index(source)
            parts = check.copied() if index is None else copied_by_index(check.file, str(source.path), source.header, index)
            making.target.put(name, making.counted(parts), check.file)

    def _sound_index(self, source: SourceFile) -> EventIndex | None:
        """Returns the index of a sorted file, if all of it is sound."""
        folder = self._log.folder
        if not source.header.sorted:
            return None
        try:
            index = open_index(folder.files, folder.derived_path(source.header.number, INDEX))
            if index.header.belongs_to(source.header):
                index.verify()
                return index
        except (OSError, EventStoreError):
            pass
        return None

    def _records(self, source: SourceFile, before: BackedFile | None) -> Iterator[str]:
        """Wants the records that are new since the last backup, or all if there are many pieces."""
        header, last = source.header, min(self._log.last_sequence, source.header.last_sequence or self._log.last_sequence)
        if before is not None and before.object:  # it was sorted, and was put back unsorted
            self._backed[header.number] = before
            yield from before.objects()
            return
        if before is not None and before.last_sequence >= last:
            self._backed[header.number] = before
            yield from before.objects()
            return
        if before is not None and len(before.pieces) >= PIECES_MAX:
            before = None
        start, sequence = (RECORDS_FROM, header.first_sequence) if before is None else (before.end, before.last_sequence + 1)
        if before is not None:
            yield from before.objects()
        name = f"{self._folder}/{header.number:010d}-{start}-{self._making.token}.records"
        yield self._making.add(name, 0, lambda: self._copy_records(name, source, before, start, sequence))

    def _copy_records(self, name: str, source: SourceFile, before: BackedFile | None, start: int, sequence: int) -> None:
        found = WalkedRecords(start, sequence - 1)

        def parts() -> Iterator[bytes]:
            for data, base, walked in self._log.records(source, start, sequence):
                found.add(data, base, walked)
                yield data

        self._making.target.put(name, self._making.counted(parts()))
        piece = BackedPiece(name, start, found.end, found.records, found.checksum, found.last, found.last_crc)
        self._backed[source.header.number] = with_piece(before, source.header.reopened(), piece, found.last_sequence)

    def backed(self) -> BackedLog:
        files = tuple(self._backed[each.header.number] for each in self._log.files)
        return BackedLog(self._log.folder.store, files, self._log.deleted)


def _changed(source: SourceFile) -> FolderRefused:
    return FolderRefused(str(source.path), "was replaced by a file with other records meanwhile; make the backup again")
