"""Replay of one aggregate, and reading everything in commit order: raw record bytes, checked, page by page.

Works from a snapshot (the list of unsorted files is taken before the directory is asked), so it may run on any thread
while appends, rolls and sorts go on. Only what is visible (durable, or written where durability is `async`) is ever
returned. A page holds whole commits; the reader trims what it did not ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from eventstore.store.tail import Tail, TailFile


@dataclass(frozen=True, slots=True)
class Page:
    """Whole commit records, one after the other, and the version to go on from (None: nothing is left)."""

    records: bytes
    next: int | None


IN_PLACE_BYTES_MAX: Final = 128 * 1024
"""How much one page may hold that is read and checked on an event loop: about 0.2 ms."""


class NotCached(Exception):
    """Reading this might wait for the disk; the caller asked not to."""


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
        NotCached
    """
    try:
        data = file.read_cached(start, stop - start) if cached_only else file.read_at(start, stop - start)
        if data is None:
            raise NotCached
    except OSError as error:
        raise ReadFailed(f"{name}: reading {stop - start} bytes at {start} failed: {error.strerror}", file=name) from error
    if len(data) != stop - start:
        raise Corrupt(name, start + len(data), f"the file ends here; a record was indexed up to {stop}")
    return data


def check_records(data: bytes, name: str, base: int) -> None:
    """Raises Corrupt unless `data` is a run of good records."""
    found = record.walk(memoryview(data), base, record.UNORDERED, commit.HEADER_BYTES)
    if found.fault is not None:
        raise Corrupt(name, found.end, found.fault)


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
            NotCached: with `cached_only`, when event files would have to be read from the disk.
        """
        stop = VERSION_MAX if to_version is None else to_version
        spans = [
            span for span in self._spans(aggregate_id, visible_sequence) if span.last >= from_version and span.first <= stop
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

    def _spans(self, aggregate_id: str, visible_sequence: int) -> Iterator[Span]:
        unsorted = self._tail.files
        in_tail = {file.number for file in unsorted}
        entry = self._directory.get(aggregate_id.encode())
        if entry is not None:
            for place in entry.places:
                if place.file not in in_tail:
                    yield self._sorted_span(aggregate_id.encode(), place)
        for file in unsorted:
            span = self._tail_span(file, aggregate_id, visible_sequence)
            if span is not None:
                yield span

    def _sorted_span(self, aggregate_id: bytes, place: Place) -> Span:
        index = self._files.index(place.file)
        file, name = self._files.file(place.file), self._files.name(place.file)
        first, last = place.first, place.first + place.rows
        ordinal = int(index.columns["ordinal"][first])
        if index.aggregate_id(ordinal) != aggregate_id:
            raise Corrupt(index.name, 0, f"row {first} belongs to another aggregate than the directory says; rebuild")
        versions = index.columns["version"]

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int, int]:
            start, stop = index.rows_between(first, last, low, high)
            start, stop = _within(index, start, stop, bytes_max, backwards, first, last)
            begin, end = index.extent(start, stop)
            data = read_checked(file, name, begin, end, cached_only)
            if (start, stop) == (first, last):
                if crc32c(data) != index.extent_crc(ordinal):
                    check_records(data, name, begin)
                    raise Corrupt(index.name, 0, f"the checksum of aggregate {aggregate_id!r} is another one; rebuild")
            else:
                check_records(data, name, begin)
            return data, int(versions[start]), int(versions[stop - 1])

        return Span(int(versions[first]), int(versions[last - 1]), read)

    def _tail_span(self, file: TailFile, aggregate_id: str, visible_sequence: int) -> Span | None:
        if aggregate_id not in file.heads:
            return None
        visible = file.written_commits(visible_sequence)
        ordinals = [ordinal for ordinal in file.commits_of(aggregate_id, 1, VERSION_MAX) if ordinal < visible]
        if not ordinals:
            return None
        name, handle = self._files.name(file.number), file.file
        assert handle is not None
        lasts = [file.versions[ordinal] for ordinal in ordinals]
        first_view = commit.decode(read_checked(handle, name, *file.extent(ordinals[0])))
        firsts = [first_view.first_version, *(version + 1 for version in lasts[:-1])]

        def read(low: int, high: int, bytes_max: int, backwards: bool, cached_only: bool) -> tuple[bytes, int, int]:
            begin = np.searchsorted(lasts, low)
            end = int(np.searchsorted(firsts, high, side="right"))
            chosen: list[int] = []
            size = 0
            for at in range(end - 1, begin - 1, -1) if backwards else range(begin, end):
                chosen.append(at)
                start, stop = file.extent(ordinals[at])
                size += stop - start
                if size >= bytes_max:
                    break
            chosen.sort()
            data = b"".join(_read_runs(file, handle, name, [ordinals[at] for at in chosen], cached_only))
            return data, firsts[chosen[0]], lasts[chosen[-1]]

        return Span(firsts[0], lasts[-1], read)


def _page(parts: list[bytes], next_version: int | None, backwards: bool) -> Page:
    return Page(b"".join(reversed(parts) if backwards else parts), next_version)


def _within(
    index: EventIndex, start: int, stop: int, bytes_max: int, backwards: bool, first: int, last: int
) -> tuple[int, int]:
    """Rows [start, stop) narrowed to about `bytes_max` from the side where reading starts, and widened to whole
    commits.
    """
    records = index.columns["record"]
    begin, end = index.extent(start, stop)
    if end - begin > bytes_max:
        if backwards:
            start = min(int(np.searchsorted(records[first:last], end - bytes_max)) + first, stop - 1)
        else:
            stop = max(int(np.searchsorted(records[first:last], begin + bytes_max)) + first, start + 1)
    while start > first and records[start - 1] == records[start]:
        start -= 1
    while stop < last and records[stop] == records[stop - 1]:
        stop += 1
    return start, stop


def _read_runs(file: TailFile, handle: File, name: str, ordinals: list[int], cached_only: bool) -> Iterator[bytes]:
    """The records of ascending commits; neighbours are read at once."""
    place = 0
    while place < len(ordinals):
        run = place
        while run + 1 < len(ordinals) and ordinals[run + 1] == ordinals[run] + 1:
            run += 1
        start, _ = file.extent(ordinals[place])
        _, stop = file.extent(ordinals[run])
        data = read_checked(handle, name, start, stop, cached_only)
        check_records(data, name, start)
        yield data
        place = run + 1
