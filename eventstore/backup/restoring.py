"""Restores a backup into a new folder, up to its end or to an earlier place. Each record is verified on its way."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eventstore.arrays import np
from eventstore.backup.checking import piece_records, read_object, sound_index, whole_file
from eventstore.backup.manifest import BackedFile, BackedLog, BackedShard
from eventstore.backup.source import BROKER_FOLDER
from eventstore.backup.target import BackupTarget
from eventstore.broker.opening import message_folder
from eventstore.chunks import slab
from eventstore.chunks.documents import write_document, write_file
from eventstore.chunks.files import Files
from eventstore.chunks.folder import DELETED, ChunkFolder
from eventstore.chunks.header import EVENTS, RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX
from eventstore.errors import Corrupt, EventStoreError, InvalidArgument
from eventstore.records import commit
from eventstore.store.data_folder import ACCESS, STORE, event_folder
from eventstore.store.sorted.file_names import INDEX

_PIECE_BYTES: Final = 1024 * 1024
_AT_THE_END: Final = (STORE, ACCESS, "silences.json", "inherited.json")
"""Documents that say nothing of how far something has come: those that an earlier place takes, too."""


@dataclass(frozen=True, slots=True)
class RestoreEnd:
    """Where a shard ends: with the last commit that ends at or before this sequence, and before the first one of a later time
    (µs). None: no such bound.
    """

    sequence: int | None = None
    time: int | None = None

    @property
    def bounded(self) -> bool:
        return self.sequence is not None or self.time is not None


@dataclass(slots=True)
class Restored:
    """What was written. `sequence`: of the last event of a shard."""

    sequence: int = 0
    written_bytes: int = 0
    total_bytes: int = 0


def restore_shard(
    target: BackupTarget,
    shard: BackedShard,
    files: Files,
    folder: Path,
    until: RestoreEnd,
    done: Restored,
    on_progress: Callable[[Restored], None] = lambda done: None,
    *,
    broker: bool = True,
) -> None:
    """Writes the data folder of a shard. Durable on return but for the folder's own name; `store.json` is written last.

    Raises:
        InvalidArgument: the backup does not go as far as `until`.
        Corrupt: an object is damaged.
        FileNotFoundError: an object is missing.
    """
    if until.sequence is not None and until.sequence > shard.end.sequence:
        raise InvalidArgument(
            f"until is {until.sequence}, but the backup ends at {shard.end.sequence}", field="until", limit=shard.end.sequence
        )
    whole = not until.bounded
    files.make_folder(folder)
    restoring = _Restoring(target, files, done, on_progress)
    done.sequence = restoring.log(event_folder(files, folder, shard.events.store), shard.events, until)
    if whole and broker and shard.messages is not None:
        path = folder / BROKER_FOLDER
        files.make_folder(path)
        restoring.log(message_folder(files, path, shard.messages.store), shard.messages, RestoreEnd())
    later = [name for name in shard.documents if name != STORE]
    for name in [*later, STORE]:
        of_broker = name.startswith(f"{BROKER_FOLDER}/")
        if not (whole or name in _AT_THE_END) or (of_broker and (not broker or shard.messages is None)):
            continue
        raw, backed = read_object(target, shard.documents[name].object), shard.documents[name]
        if hashlib.sha256(raw).hexdigest() != backed.sha256:
            raise Corrupt(str(target.path(backed.object)), 0, f"is not the {name} that was backed up")
        write_file(files, folder / name, raw)
    for path in (folder, *((folder / BROKER_FOLDER,) if files.exists(folder / BROKER_FOLDER) else ())):
        files.sync_folder(path)


def records_of(target: BackupTarget, file: BackedFile) -> Iterator[tuple[bytes, int, list[int]]]:
    """Yields the records of a file in the order in which they lie in the backup: bytes, where these begin, and each record.

    Raises:
        Corrupt, FileNotFoundError
    """
    if not file.object:
        for data, base, found in piece_records(target, file):
            yield data, base, found.offsets
        return
    with whole_file(target, file) as check:
        while check.step(_PIECE_BYTES):
            yield check.data, check.base, check.offsets


class _Restoring:
    def __init__(self, target: BackupTarget, files: Files, done: Restored, on_progress: Callable[[Restored], None]) -> None:
        self._target, self._files, self._done, self._on_progress = target, files, done, on_progress

    def log(self, folder: ChunkFolder, backed: BackedLog, until: RestoreEnd) -> int:
        """Writes the files of a log up to `until`. Returns the last sequence."""
        folder.create()
        if backed.deleted:
            write_document(self._files, folder.path / DELETED, {"deleted_through": backed.deleted, "store": str(folder.store)})
        last, end, sequence = backed.deleted, RECORDS_FROM, 0
        for file in backed.files:
            if until.sequence is not None and file.header.first_sequence > until.sequence:
                break
            reached, at = self._file(folder, file, until, followed=file is not backed.files[-1])
            if at > RECORDS_FROM:
                last, end, sequence = file.number, at, reached
            if reached < file.last_sequence:
                break
        folder.write_document(last, end)
        self._files.sync_folder(folder.path)
        return sequence

    def _file(self, folder: ChunkFolder, file: BackedFile, until: RestoreEnd, *, followed: bool) -> tuple[int, int]:
        """Writes a file. Returns its last sequence, and where its records end. `followed`: by another one in the backup."""
        path = folder.chunk_path(file.number)
        if file.object and until.time is None and (until.sequence is None or until.sequence >= file.last_sequence):
            with whole_file(self._target, file) as check:
                self._write(path, enumerate_offsets(check.copied()))
            self._write_index(folder, file)
            return file.last_sequence, file.header.end
        kept = _Kept(until, file.header)
        in_order = self._sorted_back(file, kept) if file.object else self._pieces(file, kept)
        self._write(path, in_order, lambda: kept.frame(file, followed=followed))
        if kept.end == RECORDS_FROM:
            self._files.remove(path)
        return kept.last_sequence, kept.end

    def _write_index(self, folder: ChunkFolder, file: BackedFile) -> None:
        """Writes the index, unless it is damaged or missing: the next start builds it."""
        if not file.index:
            return
        try:
            sound_index(self._target, file)
            raw = read_object(self._target, file.index)
        except (EventStoreError, FileNotFoundError):
            return
        self._write(folder.derived_path(file.number, INDEX), [(0, raw)])

    def _pieces(self, file: BackedFile, kept: _Kept) -> Iterator[tuple[int, bytes]]:
        for data, base, found in piece_records(self._target, file):
            at, size = kept.end, kept.take(kept.rows(data, np.array(found.offsets) - base))
            yield at, data[:size]
            if size < len(data):
                return

    def _sorted_back(self, file: BackedFile, kept: _Kept) -> Iterator[tuple[int, bytes]]:
        """Yields the records of a sorted file, each with the place that it had before the file was sorted."""
        found: list[slab.SlabRows] = []
        with whole_file(self._target, file) as check:
            while check.step(_PIECE_BYTES):
                found.append(kept.rows(check.data, np.array(check.offsets) - check.base))
        rows = np.concatenate(found)
        order = np.argsort(rows["sequence"], kind="stable")
        begins = kept.end + np.concatenate(([0], rows["length"][order].astype(np.int64).cumsum()))
        places = np.empty(len(rows), np.int64)
        places[order] = begins[:-1]
        kept.take(rows[order])
        at = 0
        with whole_file(self._target, file) as check:
            while check.step(_PIECE_BYTES):
                for start, end in itertools.pairwise([*check.offsets, check.done]):
                    if (place := int(places[at])) < kept.end:
                        yield place, check.data[start - check.base : end - check.base]
                    at += 1

    def _write(
        self, path: Path, parts: Iterable[tuple[int, bytes]], frame: Callable[[], list[tuple[int, bytes]]] = list
    ) -> None:
        """Writes a file, durable on return. `parts`: bytes, each with their place; `frame`: those that are known at the end."""
        file = self._files.open(path, create=True)
        try:
            for at, part in itertools.chain(parts, _later(frame)):
                file.write_at(at, [part])
                self._done.written_bytes += len(part)
                self._on_progress(self._done)
            file.sync()
        finally:
            file.close()


def _later(frame: Callable[[], list[tuple[int, bytes]]]) -> Iterator[tuple[int, bytes]]:
    yield from frame()


def enumerate_offsets(parts: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields parts that follow each other, each with its offset."""
    at = 0
    for part in parts:
        yield at, part
        at += len(part)


class _Kept:
    """What is kept of a file that may not be restored to its end: up to which byte and sequence, how many records."""

    def __init__(self, until: RestoreEnd, header: ChunkHeader) -> None:
        self._until, self._header = until, header
        self.end, self.last_sequence = RECORDS_FROM, header.first_sequence - 1
        self.records = self.checksum = 0

    def rows(self, data: bytes, starts: slab.Ints) -> slab.SlabRows:
        """Returns what decides about these records. A joint commit is kept whole: its records count to its end."""
        if self._header.kind != EVENTS:
            return slab.gather(data, starts, PREFIX.dtype("crc", "length", "sequence", "count"))
        rows = slab.gather(data, starts, commit.HEADER.dtype("own_mark", "crc", "length", "sequence", "count", "time"))
        for place in np.flatnonzero(rows["own_mark"] == commit.LONG_MARK).tolist():
            joint = commit.joint_place_of(data, int(starts[place]))
            if joint is not None:
                rows["count"][place] = joint.events - joint.events_before
        return rows

    def take(self, rows: slab.SlabRows) -> int:
        """Takes the records up to the first that is not wanted, in the order of their sequences. Returns their bytes."""
        last = rows["sequence"].astype(np.int64) + rows["count"].astype(np.int64) - 1
        unwanted = np.zeros(len(rows), bool)
        if self._until.sequence is not None:
            unwanted |= last > self._until.sequence
        if self._until.time is not None:
            unwanted |= rows["time"] > self._until.time
        many = int(np.argmax(unwanted)) if unwanted.any() else len(rows)
        size = int(rows["length"][:many].sum(dtype=np.int64))
        if many:
            self.end, self.last_sequence = self.end + size, int(last[many - 1])
            self.records += many
            self.checksum += int(rows["crc"][:many].sum(dtype=np.uint64))
        return size

    def frame(self, file: BackedFile, *, followed: bool) -> list[tuple[int, bytes]]:
        """Returns header and footer: of a completed file if all of it is kept and another follows, else of an ongoing one."""
        header = self._header.reopened()
        if followed and self.last_sequence == file.last_sequence:
            header = header.complete(self.end, self.last_sequence + 1, self.records, self.checksum)
        raw = header.encode()
        footer = [(self.end, header.footer())] if header.completed else []
        return [(0, raw.ljust(RECORDS_FROM, b"\0")), *footer]
