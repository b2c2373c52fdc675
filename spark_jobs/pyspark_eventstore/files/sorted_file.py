"""Reads the rows of a sorted event file by its index.

A scan uses the columns of the index and gathers payloads from the mapped file. A lookup of few aggregates avoids the columns,
because checking them means reading them whole, and decodes the few records instead. Either way every byte of a row is
checked first: columns by their CRC, records by the CRC of their aggregate or their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eventstore.checksum import crc32c
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.record import CRC_FROM, UNORDERED, walk
from eventstore.errors import Corrupt
from eventstore.records.commit import FRAMING
from eventstore.records.event_filter import LOG_RECORDS
from eventstore.records.splits import SlotFilter
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.sorted.index_format import blocks
from pyspark_eventstore.files.arrow_batches import cuts, tags, texts
from pyspark_eventstore.files.index_files import index_of
from pyspark_eventstore.files.read_metrics import ReadMetrics
from pyspark_eventstore.files.rows import PAYLOADS, SOURCES, FileRows
from pyspark_eventstore.files.unsorted_rows import select, take_apart
from pyspark_eventstore.source.predicates import Numbers, Texts, Wanted
from pyspark_eventstore.source.slices import Slice

Ints = npt.NDArray[np.int64]
_LOOK_UP_SHARE: Final = 16  # decoding a record costs as much as scanning about this many rows of the index
_STEP_ROWS: Final = 65_536


class SortedFile:
    """An event file and its index, opened for one slice."""

    def __init__(self, piece: Slice, header: ChunkHeader, names: Iterable[str], metrics: ReadMetrics) -> None:
        folder = piece.data_folder.folder
        self._piece = piece
        self._name = str(folder.chunk_path(piece.number))
        self._names = list(names)
        self._touched = metrics
        self._index: EventIndex = index_of(piece.data_folder, header)
        metrics.indexes += 1
        self._whole_file = piece.after < header.first_sequence and piece.upto >= header.last_sequence
        self._first_sequence = header.first_sequence
        self._own: npt.NDArray[np.bool_] | None = None
        self._rows_with_tags: Ints | None = None

    def rows(self, wanted: Wanted) -> Iterator[FileRows]:
        """Yields the wanted rows of the slice, in the order of the file.

        Raises:
            Corrupt
        """
        extents = self._extents(wanted.ids)
        if wanted.tags:
            tagged = self._tagged(wanted.tags)
            extents = [each for each in extents if np.subtract(*np.searchsorted(tagged, each))]
        count = sum(last - first for first, last in extents)
        if not count or not self._has_types(wanted.types):
            return
        if wanted.ids.members is not None and count * _LOOK_UP_SHARE < self._index.header.rows:
            yield from self._look_up(extents, wanted)
        else:
            yield from self._scan(extents, wanted)

    # -- selecting rows ---------------------------------------------------------------------------------------------------

    def _extents(self, ids: Texts) -> list[tuple[int, int]]:
        """Returns the rows [first, last) of the wanted aggregates, ascending."""
        index, piece = self._index, self._piece
        if not ids.may_lie_between(index.header.smallest, index.header.largest):
            return []
        count = index.header.aggregates
        if ids.members is not None:
            found = sorted(place for text in ids.members if (place := index.find(text)) is not None)
            return [index.rows_of(place) for place in found]
        first, last = 0, count
        if piece.blocks > 1:
            starts = blocks(count)
            first, last = starts[piece.first_block], starts[piece.last_block]
        if not ids.all:
            low, high = index.with_prefix(ids.low)[0], count if ids.high is None else index.with_prefix(ids.high)[0]
            first, last = max(first, low), min(last, high)
        if first >= last:
            return []
        rows = index.checked("first_row")
        return [(int(rows[first]), int(rows[last]))]

    def _has_types(self, wanted: Texts) -> bool:
        return wanted.all or any(wanted.holds(name.encode()) for name in self._index.type_names())

    def _chosen(self, extents: list[tuple[int, int]], wanted: Wanted) -> Iterator[Ints | slice]:
        """Yields the wanted rows, some at a time: a slice if all of them are wanted."""
        wanted = self._bounded(wanted)
        if wanted.tags:
            yield from self._having_tags(extents, wanted)
            return
        if self._by_permutation(extents, wanted):
            yield from self._in_sequence(wanted)
            return
        for first, last in extents:
            for start in range(first, last, _STEP_ROWS):
                stop = min(start + _STEP_ROWS, last)
                self._touched.rows_examined += stop - start
                mask = self._mask(slice(start, stop), wanted)
                if mask is None:
                    yield slice(start, stop)
                elif mask.any():
                    yield np.flatnonzero(mask) + start

    def _bounded(self, wanted: Wanted) -> Wanted:
        """Returns the conditions with the bounds of the slice, unless they hold anyway."""
        return wanted if self._whole_file else wanted.and_sequences(self._piece.after, self._piece.upto)

    def _by_permutation(self, extents: list[tuple[int, int]], wanted: Wanted) -> bool:
        """Returns whether so few sequences of the file are wanted that finding them one by one is faster."""
        rows = self._index.header.rows
        return extents == [(0, rows)] and wanted.sequences.high - wanted.sequences.low < rows // 4

    def _in_sequence(self, wanted: Wanted) -> Iterator[Ints | slice]:
        base, rows = self._first_sequence, self._index.header.rows
        first = max(wanted.sequences.low - base, 0)
        last = min(wanted.sequences.high - base + 1, rows)
        chosen = np.sort(self._index.checked("permutation")[first : max(last, first)]).astype(np.int64)
        yield from self._filtered(chosen, wanted)

    def _having_tags(self, extents: list[tuple[int, int]], wanted: Wanted) -> Iterator[Ints]:
        """Yields the wanted rows that may have the tags: they are looked up by hashes, so the record decides."""
        tagged = self._tagged(wanted.tags)
        for first, last in extents:
            begin, end = np.searchsorted(tagged, (first, last)).tolist()
            for start in range(begin, end, _STEP_ROWS):
                chosen = tagged[start : min(start + _STEP_ROWS, end)]
                yield from self._filtered(chosen, wanted)

    def _filtered(self, rows: Ints, wanted: Wanted) -> Iterator[Ints]:
        """Examines rows that were looked up; yields those that are wanted, unless none is."""
        self._touched.rows_examined += len(rows)
        mask = self._mask(rows, wanted)
        found = rows if mask is None else rows[mask]
        if len(found):
            yield found

    def _tagged(self, tags: Sequence[str]) -> Ints:
        if self._rows_with_tags is None:
            self._rows_with_tags = self._index.rows_with_tags(tags).astype(np.int64)
        return self._rows_with_tags

    def _mask(self, rows: Ints | slice, wanted: Wanted) -> npt.NDArray[np.bool_] | None:
        """Returns which of these rows are wanted; None for all of them."""
        parts = [
            numbers.mask(self._index.checked(column)[rows])
            for column, numbers in (("version", wanted.versions), ("sequence", wanted.sequences), ("time", wanted.times))
            if not numbers.all
        ]
        if not wanted.types.all:
            places = [place for place, name in enumerate(self._index.type_names()) if wanted.types.holds(name.encode())]
            parts.append(np.isin(self._index.checked("type")[rows], places))
        if wanted.own is not None:
            parts.append(self._owned(wanted.own)[self._index.checked("ordinal")[rows]])
        low, high = (0, 0) if wanted.log_records else self._log_records
        if low < high:
            parts.append(~Numbers(low, high - 1).mask(self._index.checked("ordinal")[rows]))
        return np.logical_and.reduce(parts) if parts else None

    # -- scanning index columns ----------------------------------------------------------------------------------

    def _scan(self, extents: list[tuple[int, int]], wanted: Wanted) -> Iterator[FileRows]:
        index, found = self._index, self._chosen(extents, wanted)
        if (begin := next(found, None)) is None:
            return  # other columns, and the event file, are not read in vain
        names = [*self._names, "tags"] if wanted.tags else self._names
        payloads = not PAYLOADS.isdisjoint(names)
        sources = sorted({source for name in names for source in SOURCES.get(name, ())} | {"record"})
        columns = {source: index.checked(source) for source in sources}
        ids = self._ids if "aggregate_id" in self._names else pa.nulls(0)
        types = self._types if "type" in self._names else pa.nulls(0)
        data = self._data if payloads else memoryview(b"")
        check = _RecordCheck(index, data, self._name, self._touched) if payloads else None
        self._touched.files += payloads
        for chosen in chain((begin,), found):
            part = {source: column[chosen] for source, column in columns.items()}
            if check is not None:
                check(chosen)
            for first, last in cuts(part["record"]):
                run = {source: column[first:last] for source, column in part.items()}
                base = int(run["record"][0])
                rows = FileRows(last - first, run, ids, types, data[base:], base)
                if wanted.tags:
                    rows = _with_tags(rows, wanted.tags)
                self._touched.rows_read += rows.count
                if rows.count:
                    yield rows

    def _owned(self, own: SlotFilter) -> npt.NDArray[np.bool_]:
        """Returns for each aggregate whether the shard has it."""
        if self._own is None:
            self._own = np.fromiter(map(own.owns, self._ids.to_pylist()), bool)
        return self._own

    @cached_property
    def _log_records(self) -> tuple[int, int]:
        return self._index.with_prefix(LOG_RECORDS.encode())

    @cached_property
    def _ids(self) -> pa.Array:
        return texts(self._index.checked("ids")[:], self._index.checked("id_ends")[:])

    @cached_property
    def _types(self) -> pa.Array:
        return texts(self._index.checked("types")[:], self._index.checked("type_ends")[:])

    @cached_property
    def _data(self) -> memoryview:
        file = OsFiles().open(self._piece.data_folder.folder.chunk_path(self._piece.number))
        try:
            return file.map()
        finally:
            file.close()

    # -- decoding records -----------------------------------------------------------------------------------------------

    def _look_up(self, extents: list[tuple[int, int]], wanted: Wanted) -> Iterator[FileRows]:
        index, metrics = self._index, self._touched
        wanted = self._bounded(wanted)
        file = OsFiles().open(self._piece.data_folder.folder.chunk_path(self._piece.number))
        metrics.files += 1
        try:
            for first, last in extents:
                index.check_rows(first, last)
                begin, end = first, last
                if not wanted.versions.all:  # versions of an aggregate ascend: versions outside the range are not read
                    begin, end = self._versions(first, last, wanted.versions)
                while begin < end:
                    stop = self._stop(begin, end)
                    start_byte, stop_byte = index.extent(begin, stop)
                    data = memoryview(file.read_at(start_byte, stop_byte - start_byte))
                    found = walk(data, start_byte, UNORDERED, FRAMING)
                    if found.fault is not None:
                        raise Corrupt(self._name, found.end, found.fault)
                    metrics.bytes_read += len(data)
                    yield from select(take_apart(data, start_byte, found), wanted, metrics)
                    begin = stop
        finally:
            file.close()

    def _versions(self, first: int, last: int, versions: Numbers) -> tuple[int, int]:
        column = self._index.columns["version"][first:last]
        low = int(np.searchsorted(column, max(versions.low, 0)))
        high = int(np.searchsorted(column, max(versions.high, 0), side="right"))
        if low >= high:
            return first, first
        starts = self._index.columns["record"][first:last]
        begin = int(np.searchsorted(starts, starts[low]))  # commits are read whole
        end = int(np.searchsorted(starts, starts[high - 1], side="right"))
        return first + begin, first + end

    def _stop(self, begin: int, end: int) -> int:
        """Returns the end of a run of whole commits that makes one batch."""
        starts = self._index.columns["record"][begin:end]
        _, last = next(cuts(starts))
        return begin + int(np.searchsorted(starts, starts[last - 1], side="right"))


def _with_tags(rows: FileRows, wanted: Sequence[str]) -> FileRows:
    """Returns the rows whose records have all of these tags."""
    mask = np.fromiter((frozenset(found).issuperset(wanted) for found in tags(rows)), bool, rows.count)
    if mask.all():
        return rows
    columns = {source: column[mask] for source, column in rows.columns.items()}
    return replace(rows, count=int(mask.sum()), columns=columns)


class _RecordCheck:
    """Checks the records of selected rows once each: by aggregate if all its rows are selected, otherwise one by one."""

    def __init__(self, index: EventIndex, data: memoryview, name: str, metrics: ReadMetrics) -> None:
        self._data = data
        self._name = name
        self._touched = metrics
        self._records = index.checked("record")
        self._lengths = index.checked("length")
        self._ordinals = index.checked("ordinal")
        self._first_rows = index.checked("first_row")
        self._crcs = index.checked("extent_crc")
        self._aggregates_done = 0
        self._bytes_done = 0

    def __call__(self, chosen: Ints | slice) -> None:
        if isinstance(chosen, slice):
            self._whole(int(chosen.start), int(chosen.stop))
        else:
            self._single(chosen)

    def _whole(self, first_row: int, last_row: int) -> None:
        """Checks all aggregates with rows in [first_row, last_row), unless they were checked before."""
        first = max(int(self._ordinals[first_row]), self._aggregates_done)
        last = int(self._ordinals[last_row - 1]) + 1
        if first >= last:
            return
        self._aggregates_done = last
        firsts = self._first_rows[first : last + 1].astype(np.int64)
        starts = self._records[firsts[:-1]].astype(np.int64)
        ends = self._records[firsts[1:] - 1].astype(np.int64) + self._lengths[firsts[1:] - 1].astype(np.int64)
        data = self._data
        crcs = [crc32c(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        bad = np.flatnonzero(np.array(crcs, np.uint32) != self._crcs[first:last])
        self._touched.bytes_read += int(ends[-1] - starts[0])
        if len(bad):
            self._blame(int(starts[bad[0]]), int(ends[bad[0]]))

    def _blame(self, start: int, end: int) -> None:
        found = walk(self._data[start:end], start, UNORDERED, FRAMING)
        raise Corrupt(self._name, found.end, found.fault or "valid records, but not those that were sorted")

    def _single(self, chosen: Ints) -> None:
        records = self._records[chosen].astype(np.int64)
        begins = np.diff(records, prepend=-1) != 0
        starts = records[begins]
        ends = starts + self._lengths[chosen][begins].astype(np.int64)
        data = self._data
        raw = np.frombuffer(data, np.uint8)
        stored = raw[starts[:, None] + np.arange(2, CRC_FROM)].view("<u4")[:, 0]
        crcs = [crc32c(data[start + CRC_FROM : end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        bad = np.flatnonzero(np.array(crcs, np.uint32) != stored)
        self._touched.bytes_read += int((ends - starts).sum())
        if len(bad):
            raise Corrupt(self._name, int(starts[bad[0]]), "the checksum of the record does not match")
