"""Takes a snapshot of a data folder: its event files, and where the records of the ongoing file end.

The store may be open. Completed files never change, except that sorting replaces them by files with the same events. The
ongoing file ends at its last valid record, and is synced before the snapshot is returned, so that no query reads events that
a power failure could take back. `chunks.json` is read before the folder is listed: it only grows, so every file it names
must exist.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.recovery import WholeCommits, read_records
from eventstore.chunks.witness import Judge
from eventstore.errors import Corrupt, FolderRefused
from eventstore.fields import counted
from eventstore.records.commit import FRAMING
from eventstore.store.data_folder import ENDING
from pyspark_eventstore.source.data_folders import DataFolder, find_data_folders

MARK_EVERY_BYTES: Final = 4 * 1024 * 1024
_SEQUENCES: Final = record.PREFIX.part("sequence", "count")
_ROUNDS_MAX: Final = 4
_ZEROS: Final = bytes(1024 * 1024)
_NEVER_DIRTY: Final = (errno.EROFS, errno.EINVAL)


@dataclass(slots=True)
class RecordMarks:
    """Record boundaries of an unsorted file: (byte offset, first sequence), a few megabytes apart. Updated with every slab."""

    places: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, data: memoryview, base: int, found: record.Walk) -> None:
        last = self.places[-1][0] if self.places else -MARK_EVERY_BYTES
        for offset, sequence in zip(found.offsets, found.sequences, strict=True):
            if offset - last >= MARK_EVERY_BYTES:
                self.places.append((offset, sequence))
                last = offset

    def before(self, sequence: int) -> tuple[int, int] | None:
        """Returns the last mark at or before `sequence`."""
        return max((place for place in self.places if place[1] <= sequence), default=None)

    def behind(self, sequence: int) -> int | None:
        """Returns a byte offset after which all sequences are larger."""
        return min((offset for offset, first in self.places if first > sequence), default=None)


@dataclass(frozen=True, slots=True)
class EventFile:
    """The readable part of an event file: up to byte `end`, just after `last_sequence`.

    Attributes:
        header: derived from the previous file if the file's own is unreadable.
        fault: why the file's own header is unreadable.
    """

    header: ChunkHeader
    end: int
    last_sequence: int
    marks: RecordMarks | None = None
    fault: str | None = None

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def first_sequence(self) -> int:
        return self.header.first_sequence


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """The event files of a data folder, oldest first, up to `last_sequence`."""

    data_folder: DataFolder
    files: tuple[EventFile, ...]
    last_sequence: int

    def shared_with(self, stores: Container[str]) -> tuple[str, int] | None:
        """Returns the nearest of these stores that the snapshot's shard was split off from, and the last sequence of the files
        that it has of that store; None if there is none.
        """
        nearest = next((each for each in reversed(self.data_folder.ancestors) if str(each.store) in stores), None)
        if nearest is None:
            return None
        return str(nearest.store), max((each.last_sequence for each in self.files if each.number <= nearest.through), default=0)


@dataclass(slots=True)
class WalkProgress:
    """How far the ongoing file has been walked, so that the next snapshot continues from there."""

    number: int = 0
    end: int = RECORDS_FROM
    next_sequence: int = 0
    marks: RecordMarks = field(default_factory=RecordMarks)


def take_snapshots(paths: Iterable[str], *, permissive: bool = False) -> list[FolderSnapshot]:
    """Takes a snapshot of every data folder at `paths`. `permissive`: see `take_snapshot`.

    Raises:
        InvalidArgument: a path names a file system that is not mounted.
        FolderRefused: a data folder is refused (see `find_data_folders`), or a file is missing, foreign, or of a newer format.
        Corrupt: a header, or the ongoing file, is damaged.
    """
    return [take_snapshot(data_folder, permissive=permissive) for data_folder in find_data_folders(paths)]


def take_snapshot(data_folder: DataFolder, progress: WalkProgress | None = None, *, permissive: bool = False) -> FolderSnapshot:
    """Returns everything that is durable in the data folder now.

    With `permissive`, neither an unreadable header nor damage in the ongoing file raises.

    Raises:
        FolderRefused: a file is missing, foreign, or of a newer format.
        Corrupt: a header, or the ongoing file, is damaged.
    """
    folder = data_folder.folder
    begun, known_end = folder.read_document()
    files: list[EventFile] = []
    for number in _numbers(folder, begun):
        before = files[-1] if files else None
        try:
            header = read_header(folder, number)
        except Corrupt as error:
            if not permissive:
                raise
            files.append(_headless(folder, number, before, str(error.fields["what"])))
            continue
        if before is not None and before.fault is None and header.first_sequence != before.last_sequence + 1:
            _refuse_order(folder, before, header)
        if header.completed:
            files.append(EventFile(header, header.end, header.last_sequence))
        else:
            known = known_end if number == begun else RECORDS_FROM
            files.append(_ongoing(folder, header, known, progress or WalkProgress(), permissive=permissive))
            break  # later files were begun after this snapshot
    return FolderSnapshot(data_folder, tuple(files), files[-1].last_sequence if files else 0)


def _headless(folder: ChunkFolder, number: int, before: EventFile | None, what: str) -> EventFile:
    last = before.last_sequence if before is not None else 0
    guessed = ChunkHeader(folder.kind, number, folder.store_of(number), 0, last + 1, 0)
    file = folder.files.open(folder.chunk_path(number))
    try:
        return EventFile(guessed, file.size(), _last_sequence(file, last), RecordMarks(), what)
    finally:
        file.close()


def read_header(folder: ChunkFolder, number: int) -> ChunkHeader:
    """Returns the header; reads it again if it is damaged, because it may have been read during a write."""
    try:
        return folder.read_header(number)
    except Corrupt:
        return folder.read_header(number)


def _numbers(folder: ChunkFolder, begun: int) -> list[int]:
    try:
        names = folder.files.names(folder.path)
    except FileNotFoundError:
        raise FolderRefused(str(folder.path), "is missing; restore it") from None
    stems = [name.removesuffix(f".{ENDING}") for name in names if name.endswith(f".{ENDING}")]
    numbers = sorted(int(stem) for stem in stems if len(stem) == 10 and stem.isdecimal())
    for expected in range(1, max(begun, len(numbers)) + 1):
        if len(numbers) < expected or numbers[expected - 1] != expected:
            have = counted(begun, "event file was", "event files were")
            raise FolderRefused(str(folder.chunk_path(expected)), f"is missing: {have} begun. Restore it")
    return numbers


def _refuse_order(folder: ChunkFolder, before: EventFile, header: ChunkHeader) -> None:
    name = str(folder.chunk_path(header.number))
    raise FolderRefused(name, f"begins at sequence {header.first_sequence}, expected {before.last_sequence + 1}")


def _ongoing(
    folder: ChunkFolder, header: ChunkHeader, known_end: int, progress: WalkProgress, *, permissive: bool
) -> EventFile:
    if progress.number != header.number:
        progress.number, progress.end, progress.next_sequence = header.number, RECORDS_FROM, header.first_sequence
        progress.marks = RecordMarks()
    name = str(folder.chunk_path(header.number))
    file = folder.files.open(folder.chunk_path(header.number))
    try:
        fault = _walk(file, name, progress)
        end, last = progress.end, progress.next_sequence - 1
        if fault is not None:
            judge = Judge(header.number, FRAMING, folder.read_key())
            damage = _damage(file, name, progress, known_end, judge)
            if damage is not None and not permissive:
                raise Corrupt(name, end, f"{fault}, {damage}")
            if damage is not None:
                end, last = file.size(), _last_sequence(file, last)
        _sync(file)
        return EventFile(header, end, last, progress.marks)
    finally:
        file.close()


def _walk(file: File, name: str, progress: WalkProgress) -> str | None:
    """Walks to the end of the last whole commit. Returns why it ends there, or None at the end of the file.

    Gives up after a few rounds if the writer is as fast as the walk.
    """
    fault: str | None = None
    for _ in range(_ROUNDS_MAX):
        size = file.size()
        whole = WholeCommits(FRAMING, progress.marks)
        found, fault = read_records(file, name, progress.end, size, progress.next_sequence, FRAMING, whole)
        end, sequence = found.end, found.next_sequence
        if whole.walk is not None:  # the rest of a joint commit is not written yet, or never will be
            end, sequence = whole.walk.offsets[0], whole.walk.sequences[0]
        stuck = end == progress.end
        progress.end, progress.next_sequence = end, sequence
        if stuck or end >= size:
            return fault if stuck else None
    return None


def _damage(file: File, name: str, progress: WalkProgress, known_end: int, judge: Judge) -> str | None:
    """Returns why the bytes at `end` are rot; None if a batch that is being written, or was torn, explains them."""
    end = progress.end
    if _only_zeros(file, end):
        return None if known_end <= end else f"though the file was durable up to byte {known_end}"
    rest = file.read_at(end, max(file.size() - end, 0))
    durable = max(known_end, judge.evidence(rest, end, progress.next_sequence).durable)
    if durable <= end:
        return None
    # A later record was written after these bytes: they will not change any more.
    again, fault = read_records(file, name, end, file.size(), record.UNORDERED, FRAMING, lambda *_: None)
    return None if fault is None or again.end > end else f"though the file was durable up to byte {durable}"


def _only_zeros(file: File, start: int) -> bool:
    """Returns whether only reserved space follows. Compares block by block: single bytes take five times as long."""
    while data := file.read_at(start, len(_ZEROS)):
        if data != _ZEROS[: len(data)]:
            return False
        start += len(data)
    return True


def _last_sequence(file: File, last: int) -> int:
    """Returns the largest sequence of any valid record in a damaged file."""
    data = file.read_at(RECORDS_FROM, max(file.size() - RECORDS_FROM, 0))
    for position, _ in record.find_valid(data, 0, FRAMING):
        sequence, count = _SEQUENCES.unpack_from(data, position)
        last = max(last, sequence + count - 1)
    return last


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        if error.errno not in _NEVER_DIRTY:  # a read-only file system holds nothing unsynced
            raise
