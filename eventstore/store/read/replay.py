"""Replays one aggregate: raw, checked records, page by page.

Works from a snapshot (it takes the list of unsorted files before it reads the directory), so it may run on any thread while
commits are appended and files sorted. Returns only visible commits (durable, or written if durability is `async`). A page
holds whole commits; the reader drops events outside its range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from eventstore.chunks.files import File, NotCached
from eventstore.errors import Corrupt
from eventstore.model import VERSION_MAX
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail
from eventstore.store.read.checked_reads import check_records, read_checked, read_records
from eventstore.store.read.sorted_places import SortedPlaces
from eventstore.store.sorted.directory_entry import RowRange
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.sorted.event_index import EventIndex


@dataclass(frozen=True, slots=True)
class ReplayPage:
    """Whole commit records, without gaps, and the version to continue from (None: nothing is left)."""

    records: bytes
    next: int | None


_FILES_PER_PAGE_MAX: Final = 64
"""Files that one page is read from: opening two for each takes some 10 ms, and other readers have their turn in between."""

_WALKED_IN_PLACE_MAX: Final = 2_000
"""Commits of one aggregate in an unsorted file that may be walked on an event loop: about 0.1 ms."""


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """An aggregate's versions [first, last] in one file, and a function that reads some of them."""

    first: int
    last: int
    read: Callable[[int, int, int, bool, bool], tuple[bytes, int, int]]


class AggregateReader:
    """Reads the history of one aggregate from sorted and unsorted files."""

    def __init__(self, files: EventFiles, tail: UnsortedTail, places: SortedPlaces) -> None:
        self._files = files
        self._tail = tail
        self._places = places

    def page(
        self,
        aggregate_id: str,
        from_version: int,
        to_version: int | None,
        backwards: bool,
        bytes_max: int,
        visible_sequence: int,
        cached_only: bool = False,
    ) -> ReplayPage:
        """Returns the first page of the range, or the last one if `backwards`: commits in ascending order, about `bytes_max`,
        fewer if they lie in very many files.

        Raises:
            NotCached: with `cached_only`, if the read would wait for the disk or walk too many commits of the tail.
        """
        stop = VERSION_MAX if to_version is None else to_version
        if from_version > stop:
            return ReplayPage(b"", None)
        history = list(self._parts(aggregate_id, from_version, stop, visible_sequence, cached_only))
        parts: list[bytes] = []
        left = bytes_max
        at = stop if backwards else from_version
        for files, part in enumerate(reversed(history) if backwards else history):
            if left <= 0 or files == _FILES_PER_PAGE_MAX:
                return _page(parts, at, backwards)
            while left > 0:
                low, high = (from_version, at) if backwards else (at, stop)
                data, first, last = part.read(max(low, part.first), min(high, part.last), left, backwards, cached_only)
                parts.append(data)
                left -= len(data)
                at = first - 1 if backwards else last + 1
                if (at < max(part.first, from_version)) if backwards else (at > min(part.last, stop)):
                    break
        finished = at < max(from_version, history[0].first) if backwards and history else True
        if not backwards and history:
            finished = at > min(stop, history[-1].last)
        return _page(parts, None if finished else at, backwards)

    def _parts(
        self, aggregate_id: str, from_version: int, to_version: int, visible_sequence: int, cached_only: bool
    ) -> Iterator[HistoryPart]:
        """Yields the parts that hold some of the versions, oldest first. Opens none of their files."""
        unsorted = self._tail.files
        in_tail = {file.number for file in unsorted}
        raw_id, first = aggregate_id.encode(), 1
        entry = self._places.entry(aggregate_id, cached_only)
        for rows in entry.row_ranges if entry is not None else ():
            if first <= to_version and first + rows.rows > from_version and rows.file not in in_tail:
                yield self._sorted_part(raw_id, rows, first)
            first += rows.rows  # a row is one event
        for file in unsorted:
            steps_max = _WALKED_IN_PLACE_MAX if cached_only else None
            found = file.commits_of(aggregate_id, file.written_commits(visible_sequence), steps_max)
            if found is None:
                raise NotCached
            if found[1]:
                part = self._tail_part(file, *found)
                if part.first <= to_version and part.last >= from_version:
                    yield part

    def _sorted_part(self, aggregate_id: bytes, rows: RowRange, first_version: int) -> HistoryPart:
        first, last = rows.first, rows.first + rows.rows

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int, int]:
            index = self._files.index(rows.file, opened_only=cached_only)
            file, name = self._files.file(rows.file, opened_only=cached_only), self._files.name(rows.file)
            ordinal = index.ordinal_of(aggregate_id, first, last)
            versions = index.columns["version"]
            index.check_rows(first, last)
            if versions[first] != first_version:
                raise Corrupt(
                    index.name, 0, f"row {first} is version {versions[first]}, not {first_version}; rebuild the directory"
                )
            start, stop = index.rows_between(first, last, low, high)
            start, stop = _within(index, start, stop, bytes_max, backwards, first, last)
            begin, end = index.extent(start, stop)
            data = read_checked(file, name, begin, end, cached_only)
            if (start, stop) != (first, last):
                check_records(data, name, begin, index.commit_sequences(start, stop))
            elif crc32c(data) != index.extent_crc(ordinal):  # faster for whole aggregates: one CRC, no walk
                check_records(data, name, begin, index.commit_sequences(start, stop))
                raise Corrupt(name, begin, "the bytes differ from those that the index was built from")
            return data, int(versions[start]), int(versions[stop - 1])

        return HistoryPart(first_version, first_version + rows.rows - 1, read)

    def _tail_part(self, file: TailFile, chain: array[int], count: int) -> HistoryPart:
        name, handle = self._files.name(file.number), file.file
        assert handle is not None
        last_version = file.versions.__getitem__

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int, int]:
            begin = bisect_left(chain, low, 0, count, key=last_version)
            end = min(bisect_left(chain, high, 0, count, key=last_version) + 1, count)
            chosen = _chosen(file, chain, begin, end, bytes_max, backwards)
            data = b"".join(read_runs(file, handle, name, chosen, cached_only))
            return data, file.first_version(chosen[0]), last_version(chosen[-1])

        return HistoryPart(file.first_version(chain[0]), last_version(chain[count - 1]), read)


def _page(parts: list[bytes], next_version: int | None, backwards: bool) -> ReplayPage:
    return ReplayPage(b"".join(reversed(parts) if backwards else parts), next_version)


def _within(
    index: EventIndex, start: int, stop: int, bytes_max: int, backwards: bool, first: int, last: int
) -> tuple[int, int]:
    """Narrows the rows [start, stop) to about `bytes_max` from the side where reading starts, and widens them to whole
    commits.
    """
    begin, end = index.extent(start, stop)
    if (start, stop) == (first, last) and end - begin <= bytes_max:
        return start, stop
    if end - begin > bytes_max:
        rows, record = range(first, last), index.columns["record"].__getitem__
        if backwards:
            start = min(first + bisect_left(rows, end - bytes_max, key=record), stop - 1)
        else:
            stop = max(first + bisect_left(rows, begin + bytes_max, key=record), start + 1)
    return index.commit_begin(start), index.commit_end(stop - 1)


def _chosen(file: TailFile, chain: array[int], begin: int, end: int, bytes_max: int, backwards: bool) -> array[int]:
    """Returns the commits of `chain[begin:end]` from the side where reading starts, until they reach `bytes_max`."""
    size = 0
    for place in reversed(range(begin, end)) if backwards else range(begin, end):
        start, stop = file.extent(chain[place])
        size += stop - start
        if size >= bytes_max:
            return chain[place:end] if backwards else chain[begin : place + 1]
    return chain[begin:end]


def read_runs(file: TailFile, handle: File, name: str, ordinals: array[int], cached_only: bool) -> Iterator[bytes]:
    """Reads the records of ascending commits, adjacent ones in one read."""
    place = 0
    while place < len(ordinals):
        run = place
        while run + 1 < len(ordinals) and ordinals[run + 1] == ordinals[run] + 1:
            run += 1
        start, _ = file.extent(ordinals[place])
        _, stop = file.extent(ordinals[run])
        yield read_records(handle, name, start, stop, file.sequences[ordinals[place]], cached_only)
        place = run + 1
