"""Permissive reading: every valid record of a damaged file, and one row for each damaged place.

Reads event files record by record and never uses an index, so other damage does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.chunks.header import FOOTER_BYTES, FOOTER_MAGIC, ChunkHeader, check_footer
from eventstore.errors import Corrupt
from eventstore.records.commit import FRAMING
from pyspark_eventstore.files.arrow_batches import BatchBuilder, corrupt_batch
from pyspark_eventstore.files.read_metrics import ReadMetrics
from pyspark_eventstore.files.unsorted_rows import SLAB_BYTES, Slab, Taken, select, take_apart
from pyspark_eventstore.source.predicates import Wanted
from pyspark_eventstore.source.slices import Slice
from pyspark_eventstore.source.snapshot import read_header

# What decoding bytes that are not a commit can raise (`flat.Malformed` is a ValueError).
_MALFORMED: Final = (ValueError, TypeError, IndexError, AttributeError)
Fault = tuple[int, str]


def permissive_rows(piece: Slice, schema: pa.Schema, wanted: Wanted, metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
    """Yields the wanted events of a slice, and the damaged places of its file."""
    folder = piece.data_folder.folder
    path = folder.chunk_path(piece.number)
    builder = BatchBuilder(schema, piece.data_folder.path, path.name)
    faults: list[Fault] = [] if piece.fault is None else [(0, piece.fault)]
    wanted_here = wanted.and_sequences(piece.after, piece.upto)
    header = read_header(folder, piece.number) if piece.fault is None else None
    completed = header is not None and header.completed
    file = folder.files.open(path)
    metrics.files += 1
    checksum = records = 0
    try:
        for data, base, found in _good_runs(file, piece.start, piece.stop, faults, completed=completed):
            metrics.bytes_read += found.end - base
            checksum += found.checksum
            records += len(found.offsets)
            for taken in _taken_apart(data, base, found, faults):
                for rows in select(taken, wanted_here, metrics):
                    yield builder.build(rows)
        if header is not None and completed and not faults:
            faults += _end(file, str(path), header, records, checksum)
    finally:
        file.close()
    told_before = piece.after >= piece.first_sequence  # reported with the first slice of the file
    if faults and not told_before:  # whatever is wanted: it may have been there
        yield corrupt_batch(schema, piece.data_folder.path, path.name, faults)


def _good_runs(file: File, start: int, stop: int, faults: list[Fault], *, completed: bool) -> Iterator[Slab]:
    """Yields runs of valid records in [start, stop); records the damage between them."""
    wanted_bytes = SLAB_BYTES
    while start < stop:
        size = min(wanted_bytes, stop - start)
        data = memoryview(file.read_at(start, size))
        found = record.walk(data, start, record.UNORDERED, FRAMING)
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
    """Returns whether these bytes are reserved space, or the footer of a file whose header does not say where records end."""
    return not rest.strip(b"\0") or (len(rest) <= FOOTER_BYTES and rest.startswith(FOOTER_MAGIC))


def _described(what: str, start: int, following: int | None, stop: int) -> str:
    until = "to the end of the records" if following is None else f"up to byte {following}"
    return f"{what}; damaged {until}, {(stop if following is None else following) - start} bytes"


def _next_good(file: File, start: int, stop: int) -> int | None:
    """Returns the offset of the first valid record at or after `start`."""
    window = record.RECORD_BYTES_MAX + SLAB_BYTES
    for base in range(start, stop, SLAB_BYTES):
        found = record.find_valid(file.read_at(base, min(window, stop - base)), 0, FRAMING)
        if found:
            return base + found[0][0]
    return None


def _taken_apart(data: memoryview, base: int, found: record.Walk, faults: list[Fault]) -> Iterator[Taken]:
    """Yields the run whole, or record by record if one of them has a valid checksum but is not a commit."""
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
            faults.append((start, f"the checksum matches, but the record is not a commit: {error}"))
        else:
            yield taken


def _end(file: File, name: str, header: ChunkHeader, records: int, checksum: int) -> list[Fault]:
    """Compares the records with what header and footer say of them."""
    try:
        check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
    except Corrupt as error:
        return [(header.end, str(error.fields["what"]))]
    if records != header.records:
        return [(header.end, f"{records} records were read, the header counts {header.records}")]
    if checksum & (2**64 - 1) != header.checksum:
        return [(header.end, "every record is valid, but they are not the records that were completed")]
    return []
