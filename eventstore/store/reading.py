"""Replay of one aggregate, and reading everything in commit order: raw record bytes, checked, page by page.

Works from a snapshot (the list of unsorted files is taken before the directory is asked), so it may run on any thread
while appends, rolls and sorts go on. Only what is visible (durable, or written where durability is `async`) is ever
returned. A page holds whole commits; the reader trims what it did not ask for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np
from crc32c import crc32c

from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.errors import Corrupt, ReadFailed
from eventstore.model import VERSION_MAX
from eventstore.store import commit
from eventstore.store.directory import Directory, Place
from eventstore.store.event_files import EventFiles
from eventstore.store.index import EventIndex
from eventstore.store.lookup import look_up
from eventstore.store.tail import Tail, TailFile


@dataclass(frozen=True, slots=True)
class Page:
    """Whole commit records, one after the other, and the version to go on from (None: nothing is left)."""

    records: bytes
    next: int | None


IN_PLACE_BYTES_MAX: Final = 128 * 1024
"""How much one page may hold that is read and checked on an event loop: about 0.2 ms. With its last commit: twice that."""

_WALKED_IN_PLACE_MAX: Final = 2_000
"""How many commits of an aggregate may be walked on an event loop, in an unsorted file: about 0.1 ms."""


class NotCached(Exception):
    """Reading this might wait for the disk, or take long for another reason; the caller asked not to."""


@dataclass(frozen=True, slots=True)
class Span:
    """Part of an aggregate's history in one file: versions [first, last], and how to read a part of it."""

    first: int
    last: int
    read: Callable[[int, int, int, bool, bool], tuple[bytes, int, int]]


def read_checked(file: File, name: str, start: int, stop: int, cached_only: bool = False) -> bytes:
    """The bytes [start, stop) of an event file.

    Raises:
        ReadFailed, Corrupt: they could not be read, or the file ends before.
        NotCached: also for what is so long that reading it takes its time all the same.
    """
    if cached_only and stop - start > 2 * IN_PLACE_BYTES_MAX:
        raise NotCached
    try:
        data = file.read_cached(start, stop - start) if cached_only else file.read_at(start, stop - start)
        if data is None:
            raise NotCached
    except OSError as error:
        raise ReadFailed(f"{name}: reading {stop - start} bytes at {start} failed: {error.strerror}", file=name) from error
    if len(data) != stop - start:
        raise Corrupt(name, start + len(data), f"the file ends here; a record was indexed up to {stop}")
    return data


def check_records(data: bytes, name: str, base: int, sequences: Sequence[int]) -> None:
    """Raises Corrupt unless `data` is a run of good records with these sequences: a good record elsewhere is not good."""
    found = record.walk(memoryview(data), base, record.UNORDERED, commit.HEADER_BYTES)
    if found.fault is not None:
        raise Corrupt(name, found.end, found.fault)
    if found.sequences != sequences:
        pairs = zip_longest(found.sequences, sequences)
        place = next(place for place, (is_, expected) in enumerate(pairs) if is_ != expected)
        offset = found.offsets[place] if place < len(found.offsets) else found.end
        raise Corrupt(name, offset, "a record that belongs elsewhere")


def read_records(file: File, name: str, start: int, stop: int, first_sequence: int, cached_only: bool = False) -> bytes:
    """The bytes [start, stop) of an unsorted event file: a run of good records, the first of which has this sequence.

    Raises:
        ReadFailed, Corrupt
        NotCached
    """
    data = read_checked(file, name, start, stop, cached_only)
    found = record.walk(memoryview(data), start, first_sequence, commit.HEADER_BYTES)
    if found.fault is not None:
        raise Corrupt(name, found.end, found.fault)
    return data


class Replay:
    """Reads the history of one aggregate out of sorted and unsorted files."""

    def __init__(self, files: EventFiles, tail: Tail, directory: Directory) -> None:
        self._files = files
        self._tail = tail
        self._directory = directory

    def page(
        self, aggregate_id: str, from_version: int, to_version: int | None, backwards: bool, bytes_max: int,
        visible_sequence: int, cached_only: bool = False,
    ) -> Page:  # fmt: skip
        """The commits of the aggregate nearest to where the reading starts, ascending, up to about `bytes_max`.

        Raises:
            NotCached: with `cached_only`, when event files would have to be read from the disk, or so many commits of the
                tail walked that an event loop would notice.
        """
        stop = VERSION_MAX if to_version is None else to_version
        if from_version > stop:
            return Page(b"", None)
        spans = [
            span
            for span in self._spans(aggregate_id, visible_sequence, cached_only)
            if span.last >= from_version and span.first <= stop
        ]
        parts: list[bytes] = []
        left = bytes_max
        at = stop if backwards else from_version
        for span in reversed(spans) if backwards else spans:
            if left <= 0:
                return _page(parts, at, backwards)
            while left > 0:
                low, high = (from_version, at) if backwards else (at, stop)
                data, first, last = span.read(max(low, span.first), min(high, span.last), left, backwards, cached_only)
                parts.append(data)
                left -= len(data)
                at = first - 1 if backwards else last + 1
                if (at < max(span.first, from_version)) if backwards else (at > min(span.last, stop)):
                    break
        finished = at < max(from_version, spans[0].first) if backwards and spans else True
        if not backwards and spans:
            finished = at > min(stop, spans[-1].last)
        return _page(parts, None if finished else at, backwards)

    def _spans(self, aggregate_id: str, visible_sequence: int, cached_only: bool) -> Iterator[Span]:
        unsorted = self._tail.files
        in_tail = {file.number for file in unsorted}
        raw_id = aggregate_id.encode()
        entry = look_up(self._directory, self._files, raw_id)
        for place in entry.places if entry is not None else ():
            if place.file not in in_tail:
                yield self._sorted_span(raw_id, place)
        for file in unsorted:
            steps_max = _WALKED_IN_PLACE_MAX if cached_only else None
            found = file.commits_of(aggregate_id, file.written_commits(visible_sequence), steps_max)
            if found is None:
                raise NotCached
            if found[1]:
                yield self._tail_span(file, *found)

    def _sorted_span(self, aggregate_id: bytes, place: Place) -> Span:
        index = self._files.index(place.file)
        file, name = self._files.file(place.file), self._files.name(place.file)
        first, last = place.first, place.first + place.rows
        ordinal = index.ordinal_of(aggregate_id, first, last)
        versions = index.columns["version"]

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int, int]:
            index.check_rows(first, last)
            start, stop = index.rows_between(first, last, low, high)
            start, stop = _within(index, start, stop, bytes_max, backwards, first, last)
            begin, end = index.extent(start, stop)
            data = read_checked(file, name, begin, end, cached_only)
            if (start, stop) != (first, last):
                check_records(data, name, begin, index.commit_sequences(start, stop))
            elif crc32c(data) != index.extent_crc(ordinal):  # the quick way for whole aggregates: one CRC, no walk
                check_records(data, name, begin, index.commit_sequences(start, stop))
                raise Corrupt(name, begin, "not the bytes that the index was made from")
            return data, int(versions[start]), int(versions[stop - 1])

        return Span(int(versions[first]), int(versions[last - 1]), read)

    def _tail_span(self, file: TailFile, chain: array[int], count: int) -> Span:
        name, handle = self._files.name(file.number), file.file
        assert handle is not None
        last_version = file.versions.__getitem__

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int, int]:
            begin = bisect_left(chain, low, 0, count, key=last_version)
            end = min(bisect_left(chain, high, 0, count, key=last_version) + 1, count)
            chosen = _chosen(file, chain, begin, end, bytes_max, backwards)
            data = b"".join(_read_runs(file, handle, name, chosen, cached_only))
            return data, file.first_version(chosen[0]), last_version(chosen[-1])

        return Span(file.first_version(chain[0]), last_version(chain[count - 1]), read)


def _page(parts: list[bytes], next_version: int | None, backwards: bool) -> Page:
    return Page(b"".join(reversed(parts) if backwards else parts), next_version)


def _within(
    index: EventIndex, start: int, stop: int, bytes_max: int, backwards: bool, first: int, last: int
) -> tuple[int, int]:
    """Rows [start, stop) narrowed to about `bytes_max` from the side where reading starts, and widened to whole
    commits.
    """
    begin, end = index.extent(start, stop)
    if (start, stop) == (first, last) and end - begin <= bytes_max:
        return start, stop
    records = index.columns["record"][first:last]
    if end - begin > bytes_max:
        if backwards:
            start = min(first + int(np.searchsorted(records, end - bytes_max)), stop - 1)
        else:
            stop = max(first + int(np.searchsorted(records, begin + bytes_max)), start + 1)
    start = first + int(np.searchsorted(records, records[start - first]))
    stop = first + int(np.searchsorted(records, records[stop - 1 - first], side="right"))
    return start, stop


def _chosen(file: TailFile, chain: array[int], begin: int, end: int, bytes_max: int, backwards: bool) -> array[int]:
    """The commits of `chain[begin:end]` from the side where reading starts, as many as make up `bytes_max`."""
    size = 0
    for place in reversed(range(begin, end)) if backwards else range(begin, end):
        start, stop = file.extent(chain[place])
        size += stop - start
        if size >= bytes_max:
            return chain[place:end] if backwards else chain[begin : place + 1]
    return chain[begin:end]


def _read_runs(file: TailFile, handle: File, name: str, ordinals: array[int], cached_only: bool) -> Iterator[bytes]:
    """The records of ascending commits; neighbours are read at once."""
    place = 0
    while place < len(ordinals):
        run = place
        while run + 1 < len(ordinals) and ordinals[run + 1] == ordinals[run] + 1:
            run += 1
        start, _ = file.extent(ordinals[place])
        _, stop = file.extent(ordinals[run])
        yield read_records(handle, name, start, stop, file.sequences[ordinals[place]], cached_only)
        place = run + 1
