"""Replays aggregates: raw, checked records, page by page.

Works from a snapshot (it takes the list of unsorted files before it reads the directory), so it may run on any thread while
commits are appended and files sorted. Returns only visible commits (durable, or written if durability is `async`). A page
holds whole commits; the reader drops events outside its range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.files import NotCached
from eventstore.errors import Corrupt
from eventstore.model import VERSION_MAX
from eventstore.records.commit import up_to
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail
from eventstore.store.read.checked_reads import check_records, read_checked, read_records
from eventstore.store.read.sorted_places import SortedPlaces
from eventstore.store.sorted.directory_entry import RowRange
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.sorted.event_index import EventIndex


@dataclass(slots=True)  # not frozen, as those are made in a third of the time
class ReplayPage:
    """Whole commit records, without gaps, and the version to continue from (None: nothing is left)."""

    records: bytes
    next: int | None


_FILES_PER_PAGE_MAX: Final = 64
"""Files that one page is read from: opening two for each takes some 10 ms, and other readers have their turn in between."""

_WALKED_IN_PLACE_MAX: Final = 2_000
"""Commits of one aggregate in an unsorted file that may be walked on an event loop: about 0.1 ms."""


@dataclass(slots=True)
class HistoryPart:
    """The wanted versions [first, last] of an aggregate in one file. `read` reads commits of some of them, and returns their
    bytes and the version to continue from, which is before those if it reads backwards.
    """

    first: int
    last: int
    read: Callable[[int, int, int, bool, bool], tuple[bytes, int]]


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
        fewer if they lie in very many files. Of those after `visible_sequence`, it has some of the sorted file that holds it.

        Raises:
            NotCached: with `cached_only`, if the read would wait for the disk or walk too many commits of the tail.
        """
        stop = VERSION_MAX if to_version is None else to_version
        if from_version > stop:
            return ReplayPage(b"", None)
        history = self._parts(aggregate_id, from_version, stop, visible_sequence, cached_only)
        parts: list[bytes] = []
        left = bytes_max
        at = stop if backwards else from_version
        for files, part in enumerate(reversed(history) if backwards else history):
            if left <= 0 or files == _FILES_PER_PAGE_MAX:
                return _page(parts, at, backwards)
            at = min(at, part.last) if backwards else max(at, part.first)
            while left > 0 and part.first <= at <= part.last:
                low, high = (part.first, at) if backwards else (at, part.last)
                data, at = part.read(low, high, left, backwards, cached_only)
                parts.append(data)
                left -= len(data)
        left_over = history and (at >= history[0].first if backwards else at <= history[-1].last)
        return _page(parts, at if left_over else None, backwards)

    def _parts(
        self, aggregate_id: str, from_version: int, to_version: int, visible_sequence: int, cached_only: bool
    ) -> list[HistoryPart]:
        """Returns the parts that hold some of the versions, oldest first. Opens none of their files."""
        unsorted = self._tail.files
        parts: list[HistoryPart] = []
        entry = self._places.entry(aggregate_id, cached_only)
        if entry is not None:
            in_tail = {file.number for file in unsorted}
            raw_id, first = aggregate_id.encode(), 1
            for rows in entry.row_ranges:
                if self._files.headers[rows.file - 1].first_sequence > visible_sequence:
                    break
                if first <= to_version and first + rows.rows > from_version and rows.file not in in_tail:
                    parts.append(self._sorted_part(raw_id, rows, first, from_version, to_version))
                first += rows.rows  # a row is one event
        for file in unsorted:
            steps_max = _WALKED_IN_PLACE_MAX if cached_only else None
            found = file.commits_of(aggregate_id, file.written_commits(visible_sequence), steps_max)
            if found is None:
                raise NotCached
            chain, count = found
            if count:
                first, last = file.first_version(chain[0]), file.versions[chain[count - 1]]
                if first <= to_version and last >= from_version:
                    parts.append(self._tail_part(file, chain, count, max(first, from_version), min(last, to_version)))
        return parts

    def _sorted_part(
        self, aggregate_id: bytes, rows: RowRange, first_version: int, from_version: int, to_version: int
    ) -> HistoryPart:
        first, last = rows.first, rows.first + rows.rows

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int]:
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
            return data, int(versions[start]) - 1 if backwards else int(versions[stop - 1]) + 1

        return HistoryPart(max(first_version, from_version), min(first_version + rows.rows - 1, to_version), read)

    def _tail_part(self, file: TailFile, chain: array[int], count: int, first: int, last: int) -> HistoryPart:
        name, last_version = self._files.name(file.number), file.versions.__getitem__

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int]:
            begin = bisect_left(chain, low, 0, count, key=last_version)
            end = bisect_left(chain, high, begin, count, key=last_version) + 1
            chosen = file.up_to(bytes_max, chain, begin, end, backwards)
            data = read_commits(file, name, chosen, cached_only)
            return data, file.first_version(chosen[0]) - 1 if backwards else last_version(chosen[-1]) + 1

        return HistoryPart(first, last, read)


def replay_many(
    replay: Callable[[str, int, int], ReplayPage], aggregates: Sequence[tuple[str, int]], through: int, bytes_max: int
) -> tuple[bytes, bool]:
    """Returns a page of the commits of several aggregates up to the sequence `through`, each from a version on: those of the
    first, then those of the second, about `bytes_max` of them. Also whether that is all; otherwise it has one at least, and
    what follows begins after the last of them. `replay`: takes id, version and bytes.
    """
    parts: list[bytes] = []
    left = bytes_max
    for aggregate_id, from_version in aggregates:
        following: int | None = from_version
        while following is not None:
            if left <= 0:
                return b"".join(parts), False
            page = replay(aggregate_id, following, left)
            records = up_to(page.records, through)
            parts.append(records)
            left -= len(records)
            following = page.next if len(records) == len(page.records) else None
    return b"".join(parts), True


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


def read_commits(file: TailFile, name: str, ordinals: Sequence[int], cached_only: bool = False) -> bytes:
    """Reads the records of ascending commits, adjacent ones in one read."""
    handle, place, count = file.file, 0, len(ordinals)
    assert handle is not None
    runs: list[bytes] = []
    while place < count:
        first = last = ordinals[place]
        place += 1
        while place < count and ordinals[place] == last + 1:
            last += 1
            place += 1
        start, stop = file.extent(first, last)
        runs.append(read_records(handle, name, start, stop, file.sequences[first], cached_only))
    return b"".join(runs)
