"""Permissive reading: whatever is good of a damaged file, and one row for each damaged place.

Reads event files record by record and never asks an index, so that it does not matter what else is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.chunks.header import FOOTER_BYTES, FOOTER_MAGIC, ChunkHeader, check_footer
from eventstore.errors import Corrupt
from eventstore.store.commit import HEADER_BYTES
from pyspark_eventstore.batches import BatchBuilder, corrupt_batch
from pyspark_eventstore.predicates import Wanted
from pyspark_eventstore.records import SLAB_BYTES, Slab, Taken, select, take_apart
from pyspark_eventstore.slices import Slice
from pyspark_eventstore.snapshot import read_header
from pyspark_eventstore.touched import Touched

# What taking apart bytes of another shape than a commit's can raise (`flat.Malformed` is a ValueError).
_MALFORMED: Final = (ValueError, TypeError, IndexError, AttributeError)
Fault = tuple[int, str]


def salvaged(piece: Slice, schema: pa.Schema, wanted: Wanted, touched: Touched) -> Iterator[pa.RecordBatch]:
    """The wanted events of a slice, and what is damaged in its file."""
    folder = piece.shard.folder
    path = folder.chunk_path(piece.number)
    builder = BatchBuilder(schema, piece.shard.path, path.name)
    faults: list[Fault] = [] if piece.fault is None else [(0, piece.fault)]
    wanted_here = wanted.and_sequences(piece.after, piece.upto)
    header = read_header(folder, piece.number) if piece.fault is None else None
    completed = header is not None and header.completed
    file = folder.files.open(path)
    touched.files += 1
    checksum = records = 0
    try:
        for data, base, found in _good_runs(file, piece.start, piece.stop, faults, completed=completed):
            touched.bytes_read += found.end - base
            checksum += found.checksum
            records += len(found.offsets)
            for taken in _taken_apart(data, base, found, faults):
                for rows in select(taken, wanted_here, touched):
                    yield builder.build(rows)
        if header is not None and completed and not faults:
            faults += _end(file, str(path), header, records, checksum)
    finally:
        file.close()
    told_before = piece.after >= piece.first_sequence  # by whoever read the beginning of the file
    if faults and wanted.any_event and not told_before:
        yield corrupt_batch(schema, piece.shard.path, path.name, faults)


def _good_runs(file: File, start: int, stop: int, faults: list[Fault], *, completed: bool) -> Iterator[Slab]:
    """Runs of good records in [start, stop); notes what lies between them."""
    wanted_bytes = SLAB_BYTES
    while start < stop:
        size = min(wanted_bytes, stop - start)
        data = memoryview(file.read_at(start, size))
        found = record.walk(data, start, record.UNORDERED, HEADER_BYTES)
        if found.offsets:
            yield data, start, found
        at_end = start + size >= stop or len(data) < size
        start = found.end
        wanted_bytes = max(SLAB_BYTES, found.wants)
        if (found.fault is None and len(data) == size) or (found.wants and not at_end):
            continue
        following = _next_good(file, start + 1, stop)
        if following is None and not completed and _is_no_fault(file.read_at(start, stop - start)):
            return
        faults.append((start, _described(found.fault or "the file ends here", start, following, stop)))
        start = stop if following is None else following


def _is_no_fault(rest: bytes) -> bool:
    """Space that was reserved, or the footer of a file whose header does not say where its records end."""
    return not rest.strip(b"\0") or (len(rest) <= FOOTER_BYTES and rest.startswith(FOOTER_MAGIC))


def _described(what: str, start: int, following: int | None, stop: int) -> str:
    until = "to the end of the records" if following is None else f"up to byte {following}"
    return f"{what}; damaged {until}, {(stop if following is None else following) - start} bytes"


def _next_good(file: File, start: int, stop: int) -> int | None:
    """Where the first good record at or behind `start` begins."""
    window = record.RECORD_BYTES_MAX + SLAB_BYTES
    for base in range(start, stop, SLAB_BYTES):
        found = record.find_valid(file.read_at(base, min(window, stop - base)), 0, HEADER_BYTES)
        if found:
            return base + found[0][0]
    return None


def _taken_apart(data: memoryview, base: int, found: record.Walk, faults: list[Fault]) -> Iterator[Taken]:
    """The run whole, or record by record where one of them has a good checksum and is no commit all the same."""
    try:
        whole = take_apart(data, base, found)
    except _MALFORMED:
        yield from _one_by_one(data, base, found, faults)
    else:
        yield whole


def _one_by_one(data: memoryview, base: int, found: record.Walk, faults: list[Fault]) -> Iterator[Taken]:
    stops = [*found.offsets[1:], found.end]
    for start, stop, sequence in zip(found.offsets, stops, found.sequences, strict=True):
        single = record.Walk([start], [sequence], stop, 0, 0, 0, None)
        try:
            taken = take_apart(data[start - base : stop - base], start, single)
        except _MALFORMED as error:
            faults.append((start, f"the checksum is right, but this is not a commit: {error}"))
        else:
            yield taken


def _end(file: File, name: str, header: ChunkHeader, records: int, checksum: int) -> list[Fault]:
    """What header and footer say of the records, and whether it is so."""
    try:
        check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
    except Corrupt as error:
        return [(header.end, str(error.fields["what"]))]
    if records != header.records:
        return [(header.end, f"{records} records were read, the header counts {header.records}")]
    if checksum & (2**64 - 1) != header.checksum:
        return [(header.end, "every record is good by itself, but they are not those that were completed")]
    return []
