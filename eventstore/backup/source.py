"""What there is to be backed up in a data folder, also while its server runs.

A server answers how far its log is readable (the *cut*), and need do nothing else: completed files never change, a sorted file
replaces an unsorted one with the same records, and the ongoing file is only added to after the cut. A file that may be replaced
is opened when it is listed, and read through that descriptor. What a replica has after the cut may be taken back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from eventstore.broker.opening import BROKER, OFFSETS, TOPICS, message_folder
from eventstore.chunks import slab
from eventstore.chunks.documents import read_file, read_identity
from eventstore.chunks.files import File, Files, naming
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS, RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX, UNORDERED, Framing, Walk, crc_at
from eventstore.chunks.recovery import recover
from eventstore.chunks.witness import Judge
from eventstore.errors import Corrupt, FolderRefused, ReadFailed
from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.records import commit, message
from eventstore.store.data_folder import ACCESS, STORE, read_event_folder
from eventstore.store.sorted.event_index import open_index
from eventstore.store.sorted.file_names import INDEX

BROKER_FOLDER: Final = "broker"
_EARLY: Final = ("reactions.json", "published.json", "inherited.json", "silences.json", ACCESS, f"{BROKER_FOLDER}/{OFFSETS}")
"""Say how far something has come, so they are read before the cut is taken: none may be ahead of it."""
_LATE: Final = (STORE, f"{BROKER_FOLDER}/{BROKER}", f"{BROKER_FOLDER}/{TOPICS}")
"""Say what there is, so they are read after the cut: no message may be of a topic that is missing."""
_PUBLISHED: Final = "published-"
_SLAB_BYTES: Final = 1024 * 1024
_BROKER_FORMAT: Final = 1


def framing_of(kind: int) -> Framing:
    """Returns the framing of the records in a chunk of this kind."""
    return commit.FRAMING if kind == EVENTS else message.FRAMING


@dataclass(frozen=True, slots=True)
class ShardCut:
    """Up to where a shard is readable, all at one moment: the sequence of an event, and the number of a message."""

    sequence: int
    messages: int


@dataclass(slots=True)
class WalkedRecords:
    """Records that were walked over: up to which byte and sequence, how many, the sum of their CRCs, and the last one."""

    end: int
    last_sequence: int
    records: int = 0
    checksum: int = 0
    last: int = 0
    last_crc: int = 0

    def add(self, data: bytes, base: int, found: Walk) -> None:
        self.records += len(found.offsets)
        self.checksum = (self.checksum + found.checksum) & (2**64 - 1)
        self.end, self.last_sequence = found.end, found.next_sequence - 1
        self.last = found.offsets[-1]
        self.last_crc = crc_at(data, self.last - base)


class Reads(Protocol):
    """What records are read from."""

    def read_at(self, offset: int, length: int, /) -> bytes: ...


def walk(
    file: Reads, name: str, start: int, sequence: int, through: int, framing: Framing, stop: int | None = None
) -> Iterator[tuple[bytes, int, Walk]]:
    """Yields good records that follow each other from byte `start` on, up to sequence `through` or byte `stop`: their bytes,
    where these begin, and the records. `sequence`: of the first record.

    Raises:
        Corrupt: a record is damaged, or missing.
        ReadFailed
    """
    wanted = _SLAB_BYTES
    while sequence <= through and (stop is None or start < stop):
        length = wanted if stop is None else min(wanted, stop - start)
        try:
            data = file.read_at(start, length)
        except OSError as error:
            raise ReadFailed(f"{name}: reading {length} bytes at {start} failed: {error.strerror}", file=name) from error
        found = slab.walk(data, start, sequence, framing)
        if not found.offsets:
            if found.wants > length and len(data) == length and (stop is None or start + length < stop):
                wanted = found.wants
                continue
            raise Corrupt(name, found.end, found.fault or "the file ends here")
        if (many := bisect_right(found.sequences, through)) < len(found.offsets):
            if not many:
                return
            found = slab.walk(data[: found.offsets[many] - start], start, sequence, framing)
        yield data[: found.end - start], start, found
        start, sequence, wanted = found.end, found.next_sequence, _SLAB_BYTES


@dataclass(slots=True)
class SourceFile:
    """A chunk file. `file`: opened, unless nothing can replace it any more."""

    path: Path
    header: ChunkHeader
    file: File | None

    @property
    def final(self) -> bool:
        return self.file is None


@dataclass(slots=True)
class SourceLog:
    """The chunk files of a store or broker up to its cut, without those that were deleted."""

    folder: ChunkFolder
    last_sequence: int
    deleted: int
    files: list[SourceFile] = field(default_factory=list)

    def close(self) -> None:
        for each in self.files:
            if each.file is not None:
                each.file.close()

    def records(self, of: SourceFile, start: int, sequence: int) -> Iterator[tuple[bytes, int, Walk]]:
        """Yields the records of a file that is not final up to the cut (see `walk`)."""
        assert of.file is not None
        stop = of.header.end if of.header.completed else None
        return walk(of.file, str(of.path), start, sequence, self.last_sequence, framing_of(self.folder.kind), stop)


def list_log(folder: ChunkFolder, through: int | None) -> SourceLog:
    """Lists the chunk files up to sequence `through`; None: nothing writes to the folder, and all of it counts.

    Raises:
        FolderRefused, Corrupt
    """
    deleted = folder.deleted()
    ending = f".{folder.ending}"
    stems = (name.removesuffix(ending) for name in folder.files.names(folder.path) if name.endswith(ending))
    last = max((int(stem) for stem in stems if stem.isdecimal()), default=deleted)
    log = SourceLog(folder, through or 0, deleted)
    try:
        for number in range(deleted + 1, last + 1):
            if (found := _opened(folder, number)) is None:  # retention has deleted it meanwhile, and those before it
                log.close()
                log.deleted, log.files = number, []
                continue
            if through is not None and found.header.first_sequence > log.last_sequence:
                if found.file is not None:
                    found.file.close()
                break
            log.files.append(found)
            if found.final:
                log.last_sequence = max(log.last_sequence, found.header.last_sequence)
        if through is None:
            _measure(log)
        _drop_empty(log)
        if log.last_sequence and not log.files:
            raise FolderRefused(str(folder.path), f"has no file up to {log.last_sequence}; is this the folder of the server?")
    except BaseException:
        log.close()
        raise
    return log


def _opened(folder: ChunkFolder, number: int) -> SourceFile | None:
    """Returns a file, opened before its header is read: the descriptor is that of the unsorted file if the header is."""
    path = folder.chunk_path(number)
    try:
        file = folder.files.open(path)
    except FileNotFoundError:
        if number <= folder.deleted():
            return None
        raise FolderRefused(str(path), "is missing; restore it") from None
    try:
        header = _settled_header(folder, number)
        if header is None:
            file.close()
            return None
        final = header.sorted if folder.kind == EVENTS else header.completed
    except BaseException:
        file.close()
        raise
    if final:
        file.close()
    return SourceFile(path, header, None if final else file)


def _settled_header(folder: ChunkFolder, number: int) -> ChunkHeader | None:
    """Returns the header of a file, which may be completed at this moment; None: it was deleted."""
    try:
        return folder.read_header(number)
    except FileNotFoundError:
        return None
    except Corrupt:  # half of a header that is being replaced, or a file that is being cut to its size
        return folder.read_header(number)


def _measure(log: SourceLog) -> None:
    """Finds the end of a log that nothing writes to. Raises Corrupt: what was durable is damaged."""
    if not log.files:
        return
    last = log.files[-1]
    if last.header.completed:
        log.last_sequence = last.header.last_sequence
        return
    assert last.file is not None
    folder, kind = log.folder, log.folder.kind
    begun, end = folder.read_document()
    judge = Judge(last.header.number, framing_of(kind), folder.read_key())
    known_end = end if begun == last.header.number else RECORDS_FROM
    found = recover(last.file, str(last.path), last.header.first_sequence, known_end, judge, lambda data, base, found: None)
    log.last_sequence = found.next_sequence - 1


def _drop_empty(log: SourceLog) -> None:
    """Leaves out files at the end that hold nothing up to the cut."""
    while log.files and log.files[-1].header.first_sequence > log.last_sequence:
        if (file := log.files.pop().file) is not None:
            file.close()


def event_at(log: SourceLog, sequence: int) -> Event:
    """Returns an event of the log, whatever form its file has.

    Raises:
        Corrupt: it cannot be found.
    """
    of = next(each for each in reversed(log.files) if each.header.first_sequence <= sequence)
    if of.file is not None:
        for data, base, found in log.records(of, RECORDS_FROM, of.header.first_sequence):
            if found.next_sequence > sequence:
                place = bisect_right(found.sequences, sequence) - 1
                return _event_of(data, found.offsets[place] - base, sequence)
        raise Corrupt(str(of.path), 0, f"has no event {sequence}")
    files = log.folder.files
    index = open_index(files, log.folder.derived_path(of.header.number, INDEX))
    if not index.header.belongs_to(of.header):
        raise Corrupt(index.name, 0, "is not the index of its file")
    row = int(index.columns["permutation"][sequence - of.header.first_sequence])
    file = files.open(of.path)
    try:
        with naming(of.path):
            at = int(index.columns["record"][row])
            length = int.from_bytes(file.read_at(at + PREFIX["length"].offset, PREFIX["length"].size), "little")
            data = file.read_at(at, min(length, of.header.end - at))
    finally:
        file.close()
    checked = slab.walk(data, at, UNORDERED, commit.FRAMING)
    if not checked.offsets:
        raise Corrupt(str(of.path), at, checked.fault or "no record")
    return _event_of(data, 0, sequence)


def _event_of(data: bytes, position: int, sequence: int) -> Event:
    view = commit.decode(data, position)
    return commit.to_events(view)[sequence - view.sequence]


def position_at(log: SourceLog) -> tuple[LogPosition, int]:
    """Returns where the log ends, and the time of its last event; 0 if it has none."""
    if not log.last_sequence:
        return LogPosition(0), 0
    event = event_at(log, log.last_sequence)
    return LogPosition.at(event), event.timestamp


class DataSource:
    """A data folder. Call `read_early`, take the cut, then `read_late`; `close` at the end.

    Attributes:
        documents: by their path in the folder.
        messages: None: the backup is without the broker, or there is none.
    """

    def __init__(self, files: Files, folder: Path, *, broker: bool) -> None:
        self._files, self.folder = files, folder
        self._broker = broker and files.exists(folder / BROKER_FOLDER / BROKER)
        self.documents: dict[str, bytes] = {}
        self.events = SourceLog(read_event_folder(files, folder), 0, 0)
        self.messages: SourceLog | None = None

    def read_early(self) -> None:
        self._read(_EARLY)
        self._read([name for name in self._files.names(self.folder) if name.startswith(_PUBLISHED) and name.endswith(".json")])

    def read_late(self, cut: ShardCut | None) -> None:
        """Lists everything up to the cut; None: nothing writes to the folder. Raises FolderRefused, Corrupt."""
        if self._broker:
            path = self.folder / BROKER_FOLDER
            identity, _ = read_identity(self._files, path / BROKER, _BROKER_FORMAT)
            self.messages = list_log(message_folder(self._files, path, identity), None if cut is None else cut.messages)
        self.events = list_log(self.events.folder, None if cut is None else cut.sequence)
        self._read(_LATE)

    def _read(self, names: Iterator[str] | tuple[str, ...] | list[str]) -> None:
        for name in names:
            if name.startswith(f"{BROKER_FOLDER}/") and not self._broker:
                continue
            try:
                self.documents[name] = read_file(self._files, self.folder / name)
            except FileNotFoundError:
                continue

    def logs(self) -> Iterator[SourceLog]:
        yield self.events
        if self.messages is not None:
            yield self.messages

    def close(self) -> None:
        for log in self.logs():
            log.close()
