"""Reads a whole event file, continuing after damaged bytes.

A normal reader stops at the first wrong byte. A verification reports it, searches for the next valid record and continues, so
that one flipped bit is one finding and the rest of the file is checked too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from eventstore.arrays import np, npt
from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import FOOTER_BYTES, RECORDS_FROM, ChunkHeader, check_footer, decode_header
from eventstore.chunks.header import HEADER_BYTES as CHUNK_HEADER_BYTES
from eventstore.chunks.recovery import OnRecords, read_records, recover
from eventstore.chunks.slab import Ints, gather
from eventstore.chunks.witness import NO_KEY, Judge
from eventstore.errors import Corrupt, EventStoreError, ReadFailed
from eventstore.records.commit import FRAMING, HEADER, LONG_MARK, JointPlace, joint_place_of
from eventstore.store.sorted.command_hash import CommandHash, hash_with
from eventstore.store.sorted.file_columns import FileColumns
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.sorting import key_of_index
from eventstore.store.verification.findings import FINDINGS_MAX, Findings

# Errors that decoding bytes of another shape than a commit's may raise (`flat.Malformed` is a ValueError).
_MALFORMED: Final = (ValueError, TypeError, IndexError, AttributeError)
_SEARCH_BYTES: Final = record.RECORD_BYTES_MAX + 8 * 1024 * 1024
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Damaged bytes [start, until); `until` is None if no valid record follows."""

    start: int
    until: int | None
    what: str

    def describe(self, stop: int) -> str:
        """Returns a description; `stop` is where the records end."""
        until = "to the end of the records" if self.until is None else f"up to byte {self.until}"
        return f"{self.what}; damaged {until}, {(stop if self.until is None else self.until) - self.start} bytes"


@dataclass(slots=True)
class FileContents:
    """The readable commits and events of one file, as columns in the order of its bytes. Without a `header`, nothing was read.

    Attributes:
        ordinals: for each commit the position of its aggregate in `ids`.
        ids: sorted.
        faults: what lies between the records.
        joint: the records of joint commits, each with its byte offset and sequence.
        collected: what the columns, and the tags, were made of.
    """

    number: int
    name: str
    header: ChunkHeader | None = None
    damaged: bool = False
    columns: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    ids: list[bytes] = field(default_factory=list)
    ordinals: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    types: list[str] = field(default_factory=list)
    faults: list[DamagedBytes] = field(default_factory=list)
    joint: list[tuple[int, int, JointPlace]] = field(default_factory=list)
    collected: FileColumns = field(default_factory=FileColumns)

    def ints(self, column: str) -> Ints:
        return self.columns[column].astype(np.int64)


class _Collector:
    """Passes records to `FileColumns`, one slab at a time, and reports records that do not hold a commit."""

    def __init__(self, name: str, findings: Findings, on_bytes: OnBytes, hashes: dict[str, CommandHash]) -> None:
        self.hashes = hashes
        self.columns = FileColumns(**hashes)
        self.collected = 0
        self.checksum = 0
        self.joint: list[tuple[int, int, JointPlace]] = []
        self._name = name
        self._findings = findings
        self._on_bytes = on_bytes

    def __call__(self, data: memoryview, base: int, found: record.Walk) -> None:
        try:
            joint = _joint_places(data, base, found)
            self.columns(data, base, found)
            self.joint += joint
            self.collected += len(found.offsets)
        except _MALFORMED:
            self._one_by_one(data, base, found)
        self.checksum += found.checksum
        self._on_bytes(found.end)

    def _one_by_one(self, data: memoryview, base: int, found: record.Walk) -> None:
        stops = [*found.offsets[1:], found.end]
        for start, stop, sequence in zip(found.offsets, stops, found.sequences, strict=True):
            single = record.Walk([start], [sequence], stop, 0, 0, 0, None)
            try:
                joint = _joint_places(data[start - base : stop - base], start, single)
                self.columns(data[start - base : stop - base], start, single)
                self.joint += joint
                self.collected += 1
            except _MALFORMED as error:
                self._findings.add(self._name, start, f"the checksum is right, but this is not a commit: {error}")


def _joint_places(data: memoryview, base: int, found: record.Walk) -> list[tuple[int, int, JointPlace]]:
    offsets = np.array(found.offsets, np.int64)
    long = np.flatnonzero(gather(data, offsets - base, HEADER.dtype("own_mark"))["own_mark"] == LONG_MARK).tolist()
    places = ((found.offsets[each], found.sequences[each], joint_place_of(data, found.offsets[each] - base)) for each in long)
    return [(offset, sequence, place) for offset, sequence, place in places if place is not None]


def read_contents(
    folder: ChunkFolder, number: int, known_end: int | None, findings: Findings, on_bytes: OnBytes, shared_key: bytes
) -> FileContents:
    """Reads all valid records of the file.

    Hashes of command ids: `commit_command` as in the file's index, `commit_shared` with `shared_key`.

    `known_end`: for the last file, which may be the ongoing one, the offset up to which it is known to be durable. The others
    must be completed.
    """
    contents = FileContents(number, str(folder.chunk_path(number)))
    before = findings.total
    try:
        file = folder.files.open(folder.chunk_path(number))
        try:
            header = _header(folder, file, contents, findings)
            if header is not None:
                contents.header = header
                if not header.completed and known_end is None:
                    findings.add(contents.name, 0, "is not completed, though another event file follows it")
                _read(folder, file, contents, header, known_end, findings, on_bytes, shared_key)
        finally:
            file.close()
    except (OSError, ReadFailed) as error:
        findings.add_error(contents.name, error)
    contents.damaged = findings.total > before
    return contents


def read_without_header(folder: ChunkFolder, number: int, findings: Findings) -> FileContents:
    """Reads all valid records of a file whose header is damaged. Raises OSError, ReadFailed."""
    contents = FileContents(number, str(folder.chunk_path(number)))
    collector = _Collector(contents.name, findings, lambda _: None, {})
    file = folder.files.open(folder.chunk_path(number))
    try:
        size = file.size()
        contents.faults = walk_on(file, contents.name, size, collector)
    finally:
        file.close()
    for fault in contents.faults:
        findings.add(contents.name, fault.start, fault.describe(size))
    _fill(contents, collector)
    return contents


def _header(folder: ChunkFolder, file: File, contents: FileContents, findings: Findings) -> ChunkHeader | None:
    """Returns the header if it is usable, and reports faults in it."""
    try:
        return folder.read_header(contents.number)
    except EventStoreError as error:
        findings.add_error(contents.name, error)
    try:  # a file shorter than its header says can still be read to its end
        header = decode_header(file.read_at(0, CHUNK_HEADER_BYTES), contents.name, folder.kind)
    except EventStoreError:
        return None
    return header if (header.number, header.store) == (contents.number, folder.store_of(contents.number)) else None


def _read(
    folder: ChunkFolder,
    file: File,
    contents: FileContents,
    header: ChunkHeader,
    known_end: int | None,
    findings: Findings,
    on_bytes: OnBytes,
    shared_key: bytes,
) -> None:
    name = contents.name
    collector = _Collector(name, findings, on_bytes, _hashes(folder, header, shared_key))
    if file.read_at(CHUNK_HEADER_BYTES, RECORDS_FROM - CHUNK_HEADER_BYTES).strip(b"\0"):
        findings.add(name, CHUNK_HEADER_BYTES, "the space between header and records is not zero")
    before = findings.total
    if header.completed or known_end is None:
        size = file.size()
        stop = min(header.end, size) if header.completed else size
        contents.faults = walk_on(file, name, stop, collector)
        for fault in contents.faults:
            findings.add(name, fault.start, fault.describe(stop))
        if stop == header.end:
            _check_end(file, name, header, collector, findings, damaged=findings.total > before)
    else:
        collector = _read_ongoing(file, folder, header, known_end, collector, contents, findings)
    _fill(contents, collector)


def _hashes(folder: ChunkFolder, header: ChunkHeader, shared_key: bytes) -> dict[str, CommandHash]:
    key = key_of_index(folder.files, folder.derived_path(header.number, INDEX)) if header.sorted else shared_key
    hashes = {"commit_command": hash_with(key)}
    return hashes if key == shared_key else {**hashes, "commit_shared": hash_with(shared_key)}


def walk_on(file: File, name: str, stop: int, on_records: OnRecords) -> list[DamagedBytes]:
    """Passes all valid records up to `stop` to `on_records`; returns the ranges of damaged bytes between them."""
    faults: list[DamagedBytes] = []
    position: int | None = RECORDS_FROM
    while position is not None and position < stop:
        found, fault = read_records(file, name, position, stop, record.UNORDERED, FRAMING, on_records)
        if fault is None:
            break
        position = _next_record(file, found.end + 1, stop) if len(faults) < FINDINGS_MAX else None
        faults.append(DamagedBytes(found.end, position, fault))
    return faults


def _next_record(file: File, start: int, stop: int) -> int | None:
    """Returns where the first valid record at or after `start` begins, or None."""
    step = _SEARCH_BYTES - record.RECORD_BYTES_MAX
    for base in range(start, stop, step):
        data = memoryview(file.read_at(base, min(_SEARCH_BYTES, stop - base)))
        found = record.find_valid(data, 0, FRAMING)
        if found:
            return base + found[0][0]
    return None


def _check_end(file: File, name: str, header: ChunkHeader, collector: _Collector, findings: Findings, *, damaged: bool) -> None:
    """Checks the footer, and the counts of header and footer against the records."""
    try:
        check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
    except Corrupt as error:
        findings.add_error(name, error)
    if damaged:
        return  # the counts cannot match
    if collector.collected != header.records:
        findings.add(name, header.end, f"{collector.collected} records were read, the header says {header.records}")
    elif collector.checksum & (2**64 - 1) != header.checksum:
        findings.add(name, header.end, "each record is valid, but they are not the records that were completed")


def _read_ongoing(
    file: File,
    folder: ChunkFolder,
    header: ChunkHeader,
    known_end: int,
    collector: _Collector,
    contents: FileContents,
    findings: Findings,
) -> _Collector:
    """Reads the ongoing file as recovery does. A torn tail is not a fault, because the next start cuts it."""
    name, key = str(folder.chunk_path(header.number)), NO_KEY
    with contextlib.suppress(EventStoreError, OSError):  # a damaged document is reported by the survey
        key = folder.read_key()
    try:
        recovered = recover(file, name, header.first_sequence, known_end, Judge(header.number, FRAMING, key), collector)
    except Corrupt as error:
        again = _Collector(name, findings, lambda _: None, collector.hashes)
        inside = [fault for fault in walk_on(file, name, file.size(), again) if fault.until is not None]
        contents.faults = inside
        for fault in inside:
            findings.add(name, fault.start, fault.describe(file.size()))
        if error.fields["offset"] not in [fault.start for fault in inside]:
            findings.add_error(name, error)
        return again
    if recovered.torn:
        findings.note(
            f"{name}: a torn tail of {len(recovered.torn)} bytes at byte {recovered.end}, never acknowledged; "
            "the next start cuts it and keeps a copy"
        )
    return collector


def _fill(contents: FileContents, collector: _Collector) -> None:
    """Moves the columns into `contents`, numbering aggregates by their position in the sorted ids."""
    if not collector.collected:
        return
    gathered = collector.columns
    contents.collected = gathered
    contents.columns = gathered.finish()
    if collector.hashes:
        contents.columns.setdefault("commit_shared", contents.columns["commit_command"])
    contents.types, contents.joint = list(gathered.types), collector.joint
    own = contents.columns["commit_ordinal"].astype(np.int64)
    names = list(gathered.ordinals)
    order = sorted(np.unique(own).tolist(), key=names.__getitem__)
    contents.ids = [names[place] for place in order]
    rank = np.zeros(len(names), np.int64)
    rank[order] = np.arange(len(order))
    contents.ordinals = rank[own]
