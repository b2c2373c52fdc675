"""Scans the log in commit order, with filters: pages of whole commit records after a sequence.

An unsorted file is in commit order already. In a sorted one the permutation of the index maps sequences to rows, and filters
are masks over index columns, so that records that do not match are never read. The events of one aggregate, and those with some
tags, are looked up, and no others are examined.

Scans run on threads, over mapped files: the first access to a page reads it from the disk. A call that holds the GIL during
this access stops the event loop too. numpy's `take` releases the GIL, and so does `crc32c` of more than 32 KiB, with which
`EventIndex.checked` first reads a column. Indexing an array with a short one does not release it, and neither does `join` of
slices.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from eventstore.arrays import np, npt
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.record import TRAILER
from eventstore.errors import Corrupt
from eventstore.query import Query
from eventstore.records.commit import first_sequence, joint_place_of
from eventstore.records.event_filter import LOG_RECORDS, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.records.splits import SlotFilter
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail
from eventstore.store.read.checked_reads import check_records, read_records
from eventstore.store.read.found_rows import FoundRows
from eventstore.store.read.own_rows import OwnRows
from eventstore.store.read.replay import read_commits
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.sorted.index_columns import Column

_WINDOW_EVENTS = 4096
_SPAN_COMMITS = 65_536
"""How many commits of an unsorted file are looked through for tags at once."""
EXAMINED_EVENTS_MAX = 65_536
"""How many events a page passes over at most, before it ends without one that matches."""
_PAGE = mmap.PAGESIZE
_LOG_RECORDS = LOG_RECORDS.encode()
_FIRST_RECORD_BYTES = 1024
"""A file's first record has its id, which is short, in this number of bytes, if it is the log's own."""

_Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"


@dataclass(frozen=True, slots=True)
class ScanPage:
    """Commit records in the order of commit, with at least one matching event each, as far as hashes of tags tell; the slot of
    a filter is not looked at here. `next`: the `after` of the following page; of a page that is read backwards, the `before`
    of the page of older commits.

    `identity`: of the event at `next`, its first 8 digits; empty if that was not looked up (see `reader_place.placed`).
    """

    records: bytes
    next: int
    at_end: bool
    identity: str = ""


class LogScanner:
    """Reads pages of the whole log."""

    def __init__(self, files: EventFiles, tail: UnsortedTail) -> None:
        self._files = files
        self._tail = tail
        self._own_rows = OwnRows()
        self._found_rows = FoundRows()

    def page(
        self,
        after: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int | None,
        visible: int,
        own: SlotFilter | None = None,
        *,
        whole: bool = False,
    ) -> ScanPage:
        """Returns the page after sequence `after`, of about `bytes_max`; `visible` is the last visible sequence. `own`: the
        part that a split shard hands out. `whole`: also the log's own commits, for readers that ask for them.

        A page that ends within a joint commit is followed by more of it: readers wait for that.
        """
        page = self._page(after, wanted, bytes_max, events_max, visible, own, whole=whole)
        end = _commit_end(page.records)
        if page.next >= end or (wanted.everything and own is None):
            return page
        following = self._page(page.next, wanted, 1, 1, end, own, whole=whole)
        if following.records and first_sequence(following.records) <= end:
            return page
        return replace(page, next=end, at_end=end >= visible)

    def _page(
        self,
        after: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int | None,
        visible: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> ScanPage:
        whole = whole or wanted.names_log_records
        parts: list[bytes] = []
        if own is not None and wanted.aggregate_id is not None:
            after = after if own.owns(wanted.aggregate_id) else max(after, min(own.through, visible))
            own = None
        left, examined = bytes_max, 0
        events_left = events_max if events_max is not None else 2**62
        while after < visible and left > 0 and events_left > 0 and examined < EXAMINED_EVENTS_MAX:
            unsorted = {file.number: file for file in self._tail.files}
            header = self._files.at_sequence(after + 1)
            assert header is not None, "a visible sequence is in a file"
            before = after
            shared = own if own is not None and after < own.through else None  # after that everything is its own
            file = unsorted.get(header.number)
            if file is not None and _is_looked_up(wanted):
                data, count, after = self._unsorted_found(file, after, wanted, left, events_left, visible, shared, whole=whole)
            elif file is not None:
                data, count, after = self._unsorted(file, after, wanted, left, events_left, visible, shared, whole=whole)
            else:
                data, count, after = self._sorted(header, after, wanted, left, events_left, shared, whole=whole)
            parts.append(data)
            left -= len(data)
            events_left -= count
            examined += _WINDOW_EVENTS if _is_looked_up(wanted) else after - before  # of others nothing is examined
        return ScanPage(b"".join(parts), after, after >= visible)

    def page_before(
        self,
        before: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int | None,
        visible: int,
        own: SlotFilter | None = None,
    ) -> ScanPage:
        """Returns the page that ends before sequence `before`, or at the end of the log: the newest commits there. The rest as
        in `page`.
        """
        parts: list[bytes] = []
        oldest, whole = 1, wanted.names_log_records
        if own is not None and wanted.aggregate_id is not None:
            oldest = 1 if own.owns(wanted.aggregate_id) else own.through + 1
            own = None
        before = min(before, visible + 1)
        left, examined = bytes_max, 0
        events_left = events_max if events_max is not None else 2**62
        while before > oldest and left > 0 and events_left > 0 and examined < EXAMINED_EVENTS_MAX:
            unsorted = {file.number: file for file in self._tail.files}
            header = self._files.at_sequence(before - 1)
            assert header is not None, "a visible sequence is in a file"
            newer = before
            shared = own if own is not None and header.first_sequence <= own.through else None
            file = unsorted.get(header.number)
            if file is not None and _is_looked_up(wanted):
                data, count, before = self._unsorted_found_before(file, before, wanted, left, events_left, shared, whole=whole)
            elif file is not None:
                data, count, before = self._unsorted_before(file, before, wanted, left, events_left, shared, whole=whole)
            else:
                data, count, before = self._sorted_before(header, before, wanted, left, events_left, shared, whole=whole)
            parts.append(data)
            left -= len(data)
            events_left -= count
            examined += _WINDOW_EVENTS if _is_looked_up(wanted) else newer - before
        return ScanPage(b"".join(reversed(parts)), before, before <= oldest)

    def _unsorted(
        self,
        file: TailFile,
        after: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int,
        visible: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> tuple[bytes, int, int]:
        handle, name = file.file, self._files.name(file.number)
        assert handle is not None
        commits = file.written_commits(visible)
        first = last = file.ordinal_at(after + 1)
        start, stop = file.extent(first)
        limit = min(commits, first + min(_WINDOW_EVENTS, events_max))
        while last + 1 < limit and stop - start < bytes_max:
            last += 1
            stop = file.extent(last)[1]
        data = read_records(handle, name, start, stop, file.sequences[first])
        end = file.sequences[last + 1] - 1 if last + 1 < commits else min(visible, file.next_sequence - 1)
        if _takes_all(data, first, wanted, own, whole):
            return data, end - after, end
        matching = _matching(data, first, wanted, own, whole, lambda sequence: sequence > after)
        return _commits_of(file, data, first, matching), len(matching), end

    def _unsorted_before(
        self,
        file: TailFile,
        before: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> tuple[bytes, int, int]:
        handle, name = file.file, self._files.name(file.number)
        assert handle is not None
        first = last = file.ordinal_at(before - 1)
        start, stop = file.extent(last)
        oldest = max(0, last + 1 - min(_WINDOW_EVENTS, events_max))
        while first > oldest and stop - start < bytes_max:
            first -= 1
            start = file.extent(first)[0]
        begin = file.sequences[first]
        data = read_records(handle, name, start, stop, begin)
        if _takes_all(data, first, wanted, own, whole):
            return data, before - begin, begin
        matching = _matching(data, first, wanted, own, whole, lambda sequence: sequence < before)
        return _commits_of(file, data, first, matching), len(matching), begin

    def _unsorted_found(
        self,
        file: TailFile,
        after: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int,
        visible: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> tuple[bytes, int, int]:
        """Reads the commits of one aggregate, or with some tags, where memory says that they are."""
        name = self._files.name(file.number)
        commits, begin = file.written_commits(visible), file.ordinal_at(after + 1)
        stop = commits if wanted.aggregate_id is not None else min(commits, begin + _SPAN_COMMITS)
        chain, first, count = _found_in(file, wanted, begin, stop)
        end = min(visible, file.next_sequence - 1) if stop == commits else file.sequences[stop] - 1
        parts: list[bytes] = []
        left, passed = bytes_max, 0
        for place in range(first, count):
            if left <= 0 or passed >= events_max or place - first >= _WINDOW_EVENTS:
                return b"".join(parts), passed, file.sequences[chain[place]] - 1
            data = read_commits(file, name, chain[place : place + 1])
            matching = len(_matching(data, chain[place], wanted, own, whole, lambda sequence: sequence > after))
            if matching:
                parts.append(data)
                left -= len(data)
                passed += matching
        return b"".join(parts), passed, end

    def _unsorted_found_before(
        self,
        file: TailFile,
        before: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> tuple[bytes, int, int]:
        """As `_unsorted_found`, from the newest commit before `before` on."""
        name = self._files.name(file.number)
        stop = file.ordinal_at(before - 1) + 1
        begin = 0 if wanted.aggregate_id is not None else max(0, stop - _SPAN_COMMITS)
        chain, first, count = _found_in(file, wanted, begin, stop)
        parts: list[bytes] = []
        left, passed = bytes_max, 0
        for place in range(count - 1, first - 1, -1):
            if left <= 0 or passed >= events_max or count - 1 - place >= _WINDOW_EVENTS:
                return b"".join(reversed(parts)), passed, file.sequences[chain[place + 1]]
            data = read_commits(file, name, chain[place : place + 1])
            matching = len(_matching(data, chain[place], wanted, own, whole, lambda sequence: sequence < before))
            if matching:
                parts.append(data)
                left -= len(data)
                passed += matching
        return b"".join(reversed(parts)), passed, file.sequences[begin]

    def _sorted(
        self,
        header: ChunkHeader,
        after: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> tuple[bytes, int, int]:
        opened = self._index_for(header.number, wanted)
        if opened is None:
            return b"", 0, header.last_sequence
        index, types = opened
        sequences = _checked_commits(index)
        if _is_looked_up(wanted):
            rows, end = _next_of(self._rows_found(index, wanted), index, header, after)
        else:
            rows, end = _window(index, header, after)
        rows = self._passing(header.number, index, rows, wanted, types, own, whole=whole)
        fresh = _commits_in(index, rows)
        commits = min(
            int(np.searchsorted(fresh, events_max)),
            int(np.searchsorted(np.cumsum(_taken(index, "length", rows[fresh])), bytes_max)) + 1,
        )
        if commits < len(fresh):
            rows, fresh = rows[: fresh[commits]], fresh[:commits]
            end = int(sequences[index.commit_end(int(rows[-1])) - 1])
        return self._gather(header.number, index, rows[fresh]), len(rows), end

    def _sorted_before(
        self,
        header: ChunkHeader,
        before: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> tuple[bytes, int, int]:
        opened = self._index_for(header.number, wanted)
        if opened is None:
            return b"", 0, header.first_sequence
        index, types = opened
        sequences = _checked_commits(index)
        if _is_looked_up(wanted):
            rows, begin = _last_of(self._rows_found(index, wanted), index, header, before)
        else:
            rows, begin = _window_before(index, header, before)
        rows = self._passing(header.number, index, rows, wanted, types, own, whole=whole)
        fresh = _commits_in(index, rows)
        after_each = len(rows) - np.append(fresh, len(rows))[:0:-1]  # rows after each commit, the newest first
        commits = min(
            int(np.searchsorted(after_each, events_max)),
            int(np.searchsorted(np.cumsum(_taken(index, "length", rows[fresh[::-1]])), bytes_max)) + 1,
        )
        if commits < len(fresh):
            first = fresh[len(fresh) - commits]
            rows, fresh = rows[first:], fresh[len(fresh) - commits :] - first
            begin = int(sequences[index.commit_begin(int(rows[0]))])
        return self._gather(header.number, index, rows[fresh]), len(rows), begin

    def _rows_found(self, index: EventIndex, wanted: EventFilter) -> _Ints:
        """Returns the rows that may pass, in the order of their sequence. Those of one aggregate are neighbours, in that
        order.
        """
        if wanted.aggregate_id is not None:
            ordinal = index.find(wanted.aggregate_id.encode())
            return np.arange(*((0, 0) if ordinal is None else index.rows_of(ordinal)))
        assert wanted.query is not None
        return self._found_rows.of(index, wanted.query)

    def _passing(
        self,
        number: int,
        index: EventIndex,
        rows: _Ints,
        wanted: EventFilter,
        types: list[int] | None,
        own: SlotFilter | None,
        *,
        whole: bool,
    ) -> _Ints:
        """Returns those of the rows that pass the filters. `types`: ordinals of the wanted types."""
        if not wanted.everything:
            rows = rows[_mask(index, rows, wanted, types)]
        if not whole and number in self._files.ranges.with_prefix(_LOG_RECORDS):
            low, high = index.rows_with_prefix(_LOG_RECORDS)
            rows = rows[(rows < low) | (rows >= high)]
        return rows if own is None else self._own_rows.of(number, index, rows, own)

    def _index_for(self, number: int, wanted: EventFilter) -> tuple[EventIndex, list[int] | None] | None:
        """Returns the index of a sorted file, and the ordinals of the wanted types there; None: no event of the file passes."""
        if not self._may_hold(number, wanted):
            return None
        index = self._files.index(number)
        types = _type_ordinals(index, wanted)
        return None if types is not None and not types else (index, types)

    def _may_hold(self, number: int, wanted: EventFilter) -> bool:
        """Returns False if no aggregate of the file passes, as far as its smallest and largest id tell."""
        ranges, prefix, aggregate_id = self._files.ranges, wanted.aggregate_prefix, wanted.aggregate_id
        return (prefix is None or number in ranges.with_prefix(prefix.encode())) and (
            aggregate_id is None or number in ranges.holding(aggregate_id.encode())
        )

    def _gather(self, number: int, index: EventIndex, rows: _Ints) -> bytes:
        """Returns the records of these rows, each of another commit, in the given order."""
        starts, lengths = _taken(index, "record", rows), _taken(index, "length", rows)
        sequences = _taken(index, "sequence", rows - _taken(index, "place", rows)).tolist()
        data, name = self._files.map(number), self._files.name(number)
        _touch(data, starts, lengths)
        extents = [(start, start + length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
        joined = b"".join([data[start:stop] for start, stop in extents])
        try:
            check_records(joined, name, 0, sequences)
        except Corrupt:  # check each alone, to report the offset in the file
            for (start, stop), sequence in zip(extents, sequences, strict=True):
                check_records(bytes(data[start:stop]), name, start, [sequence])
            raise
        return joined


def _commit_end(records: bytes) -> int:
    """Returns the last sequence of the joint commit that the last record is of; 0 if it stands alone, or there is none."""
    if not records:
        return 0
    begin = len(records) - TRAILER.struct.unpack_from(records, len(records) - TRAILER.size)[1]
    joint = joint_place_of(records, begin)
    return 0 if joint is None else first_sequence(records, begin) - joint.events_before + joint.events - 1


def _window(index: EventIndex, header: ChunkHeader, after: int) -> tuple[_Ints, int]:
    """Returns the rows of the next sequences after `after`, in their order, and the last of these sequences."""
    sequences = _checked_commits(index)
    permutation = index.checked("permutation")
    window = min(after + _WINDOW_EVENTS, header.last_sequence) - header.first_sequence
    end = int(sequences[index.commit_end(int(permutation[window])) - 1])  # a window ends where a commit does
    return permutation[after + 1 - header.first_sequence : end + 1 - header.first_sequence], end


def _window_before(index: EventIndex, header: ChunkHeader, before: int) -> tuple[_Ints, int]:
    """Returns the rows of the last sequences before `before`, in their order, and the first of these sequences."""
    permutation = index.checked("permutation")
    window = max(before - _WINDOW_EVENTS, header.first_sequence) - header.first_sequence
    begin = int(_checked_commits(index)[index.commit_begin(int(permutation[window]))])  # begins where a commit does
    return permutation[begin - header.first_sequence : before - header.first_sequence], begin


def _next_of(found: _Ints, index: EventIndex, header: ChunkHeader, after: int) -> tuple[_Ints, int]:
    """Returns the next rows after `after` of those that were found, which are in the order of their sequence, and the last
    sequence up to which these are all. It is where a commit ends.
    """
    first = _place_of(after + 1, found, index)
    stop = first + _WINDOW_EVENTS
    if stop >= len(found):
        return found[first:].astype(np.int64), header.last_sequence
    end = index.checked("sequence").item(index.commit_end(int(found[stop - 1])) - 1)
    return found[first : _place_of(end + 1, found, index)].astype(np.int64), end


def _last_of(found: _Ints, index: EventIndex, header: ChunkHeader, before: int) -> tuple[_Ints, int]:
    """Returns the last rows before `before`, as `_next_of`, and the first sequence."""
    stop = _place_of(before, found, index)
    first = stop - _WINDOW_EVENTS
    if first <= 0:
        return found[:stop].astype(np.int64), header.first_sequence
    begin = index.checked("sequence").item(index.commit_begin(int(found[first])))
    return found[_place_of(begin, found, index) : stop].astype(np.int64), begin


def _place_of(sequence: int, found: _Ints, index: EventIndex) -> int:
    """Returns the place in `found` of the first row whose sequence is not smaller."""
    sequence_of = index.checked("sequence").item
    return bisect_left(found, sequence, key=lambda row: sequence_of(int(row)))


def _checked_commits(index: EventIndex) -> Column:
    """Returns the sequences; where commits begin and end is checked as well."""
    for name in ("place", "left"):
        index.checked(name)
    return index.checked("sequence")


def _is_looked_up(wanted: EventFilter) -> bool:
    """Whether what may pass is looked up, by aggregate or tags, in place of examining every event."""
    return wanted.aggregate_id is not None or (wanted.query is not None and wanted.query.by_tags)


def _found_in(file: TailFile, wanted: EventFilter, begin: int, stop: int) -> tuple[array[int], int, int]:
    """Returns commits of an unsorted file, ascending, and from where to where in them are those that may pass, from `begin` up
    to `stop`.
    """
    if wanted.aggregate_id is None:
        assert wanted.query is not None
        tagged = file.tagged(wanted.query, begin, stop)
        return tagged, 0, len(tagged)
    found = file.commits_of(wanted.aggregate_id, stop)
    assert found is not None, "the walk was not limited"
    return found[0], bisect_left(found[0], begin, 0, found[1]), found[1]


def _takes_all(data: bytes, first: int, wanted: EventFilter, own: SlotFilter | None, whole: bool) -> bool:
    """Returns whether all events of these records pass. `first`: the number of the first commit in its file."""
    return wanted.everything and own is None and (whole or not _holds_log_record(data, first))


def _holds_log_record(data: bytes, first: int) -> bool:
    return first == 0 and _LOG_RECORDS in data[:_FIRST_RECORD_BYTES]


def _matching(
    data: bytes,
    first: int,
    wanted: EventFilter,
    own: SlotFilter | None,
    whole: bool,
    within: Callable[[int], bool],
) -> list[int]:
    """Returns the sequences of the events of these records that pass, and whose sequence is `within` the page."""
    if not wanted.may_match_in(data):
        return []
    events = [event for event in decode_page(data) if within(event[7]) and wanted.matches(event)]
    if not whole and _holds_log_record(data, first):
        events = [event for event in events if not event[0].startswith(LOG_RECORDS)]
    return [event[7] for event in events if own is None or own.passes(event[0], event[7])]


def _commits_of(file: TailFile, data: bytes, first: int, sequences: list[int]) -> bytes:
    """Returns the commits of these events. `data` begins with the commit of this number."""
    start = file.extent(first)[0]
    extents = map(file.extent, sorted(set(map(file.ordinal_at, sequences))))
    return b"".join([data[begin - start : end - start] for begin, end in extents])


def _commits_in(index: EventIndex, rows: _Ints) -> _Ints:
    """Returns the places in `rows`, which are in commit order, at which each commit begins."""
    return np.flatnonzero(np.diff(_taken(index, "record", rows), prepend=-1))


def _taken(index: EventIndex, column: str, rows: _Ints) -> _Ints:
    """Returns an index column's values for these rows."""
    return index.checked(column).take(rows)


def _touch(data: memoryview, starts: _Ints, lengths: _Ints) -> None:
    """Reads the pages of these extents into memory without holding the GIL."""
    if not len(starts):
        return
    begins = starts.astype(np.intp)
    firsts = begins // _PAGE
    counts = (begins + lengths - 1) // _PAGE - firsts + 1
    before = np.cumsum(counts) - counts
    pages = np.arange(int(counts.sum())) + np.repeat(firsts - before, counts)
    np.frombuffer(data, np.uint8).take(pages * _PAGE)


def _type_ordinals(index: EventIndex, wanted: EventFilter) -> list[int] | None:
    if wanted.types is None:
        return None
    return [place for place, name in enumerate(index.type_names()) if name in wanted.types]


def _mask(index: EventIndex, rows: _Ints, wanted: EventFilter, types: list[int] | None) -> npt.NDArray[np.bool_]:
    mask = np.ones(len(rows), bool)
    if types is not None:
        mask &= np.isin(_taken(index, "type", rows), types)
    if wanted.aggregate_prefix is not None:
        first, last = index.rows_with_prefix(wanted.aggregate_prefix.encode())
        mask &= (rows >= first) & (rows < last)
    if wanted.from_time is not None:
        mask &= _taken(index, "time", rows) >= wanted.from_time
    if wanted.to_time is not None:
        mask &= _taken(index, "time", rows) <= wanted.to_time
    if wanted.query is not None:
        only = wanted.aggregate_id is None and wanted.query.by_tags and len(wanted.query.items) == 1
        mask &= _mask_of_query(index, rows, wanted.query, have_tags=only)  # they were found by these
    return mask


def _mask_of_query(index: EventIndex, rows: _Ints, query: Query, *, have_tags: bool) -> npt.NDArray[np.bool_]:
    """Returns which rows may pass: tags are compared by their hashes. `have_tags`: all rows have those of the only item."""
    found = np.zeros(len(rows), bool)
    names = index.type_names() if any(item.types for item in query.items) else []
    types = _taken(index, "type", rows) if names else rows
    for item in query.items:
        mask = np.ones(len(rows), bool)
        if item.types:
            mask &= np.isin(types, [place for place, name in enumerate(names) if name in item.types])
        if item.tags and not have_tags:
            mask &= np.isin(rows, index.rows_with_tags(item.tags))
        found |= mask
    return found
