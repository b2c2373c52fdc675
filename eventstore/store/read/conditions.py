"""Conditions by query: whether an event is there that a decision did not know, `Unless`.

A condition is checked where versions are, against everything that is committed or on its way to the disk. What that costs there
is bounded: the tags of unsorted files are in memory, so a condition whose place lies in them and whose items have tags takes a
few look-ups. For any other one, a thread looks through the log first, page by page, up to what is visible; then little is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from eventstore.event_identity import LogPosition, check_identity, check_start
from eventstore.model import Event
from eventstore.query import Query
from eventstore.records.event_filter import LOG_RECORDS
from eventstore.records.event_page import decode_page
from eventstore.records.raw_commit import Unless
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail
from eventstore.store.read.reader_place import check_place
from eventstore.store.read.scan import LogScanner, ScanPage

_PAGE_BYTES: Final = 64 * 1024
_RECORDS_MAX: Final = 64
"""How many commits a condition may read where versions are checked."""
_BYTES_MAX: Final = 256 * 1024
"""How large they may be."""
_MATCHES_MAX: Final = 4096
"""How many events of them may be compared with an item of the query."""
_NEXT_STEP: Final = "query again, and decide again"


class Conditions:
    """Looks for events that a condition forbids. `read_record` reads a commit of the tail, written or still in memory."""

    def __init__(self, tail: UnsortedTail, scanner: LogScanner, read_record: Callable[[TailFile, int], bytes]) -> None:
        self._tail = tail
        self._scanner = scanner
        self._read_record = read_record

    def is_quick(self, unless: Unless) -> bool:
        """Whether `first_event` takes no longer than looking at some records in memory."""
        if unless.found is not None:
            return True
        (after, identity), files = unless.after, self._tail.files
        known_from = files[0].first_sequence if files else 0  # the identity of the event before is not in memory
        if not files or after < (known_from if identity else known_from - 1):
            return False
        query, by_tags, commits = unless.query, unless.query.by_tags, 0
        for file, first in self._files_after(after):
            commits += file.tagged_max(query, first) if by_tags else len(file.offsets) - first
        if not commits:
            return True
        if commits > _RECORDS_MAX:
            return False
        events = size = 0
        for file, ordinals in self._candidates(query, after):
            for ordinal in ordinals:
                begin, end = file.extent(ordinal)
                size, events = size + end - begin, events + file.count(ordinal)
        return size <= _BYTES_MAX and events * len(query.items) <= _MATCHES_MAX

    def first_event(self, unless: Unless, end: int) -> Event | None:
        """Returns the first event that the condition forbids, durable or not; None if it holds. `end`: the last sequence.

        Raises:
            Diverged: the place is beyond the end, or of another history.
            Corrupt, ReadFailed
        """
        if unless.found is not None:
            return unless.found
        (after, identity), files = unless.after, self._tail.files
        check_start(after, end)
        before_tail = files[0].first_sequence - 1 if files else end
        if identity and after > before_tail:
            self._check_identity(unless.after)
        elif identity:  # its file was in memory when it was asked whether this is quick, and was sorted since
            check_place(partial(self._scanner.page, visible=before_tail), unless.after)
        while after < before_tail:  # a file was sorted since the thread has looked
            page = self._scanner.page(after, unless.wanted, _PAGE_BYTES, None, before_tail)
            found = _first_of(unless, decode_page(page.records), after)
            if found is not None:
                return found
            after = page.next
        candidates = self._candidates(unless.query, after)
        if not candidates:  # as of most conditions
            return None
        places = ((file, ordinal) for file, ordinals in candidates for ordinal in ordinals)
        return _first_of(unless, chain.from_iterable(decode_page(self._read_record(*place)) for place in places), after)

    def _candidates(self, query: Query, after: int) -> list[tuple[TailFile, Sequence[int]]]:
        """Returns the commits of the tail after a place that a condition may forbid."""
        found: list[tuple[TailFile, Sequence[int]]] = []
        by_tags = query.by_tags
        for file, first in self._files_after(after):
            stop = len(file.offsets)
            ordinals = file.tagged(query, first, stop) if by_tags else range(first, stop)
            if ordinals:
                found.append((file, ordinals))
        return found

    def _files_after(self, after: int) -> list[tuple[TailFile, int]]:
        """Returns the files of the tail with commits after a place, and in each the first of them."""
        files = self._tail.files
        if files and (last := files[-1]).first_sequence <= after:  # as for most
            return [(last, last.ordinal_at(after + 1))] if last.next_sequence > after + 1 else []
        files = [file for file in files if file.next_sequence > after + 1]
        return [(file, max(0, file.ordinal_at(after + 1))) for file in files]

    def _check_identity(self, place: LogPosition) -> None:
        file = next(file for file in reversed(self._tail.files) if file.first_sequence <= place.sequence)
        if file.identities.get(place.sequence) == place.identity:
            return
        events = decode_page(self._read_record(file, file.ordinal_at(place.sequence)))
        found = next((event for event in events if event.sequence == place.sequence), None)
        check_identity("a condition", place.sequence, place.identity, found, _NEXT_STEP)
        file.note_identity(place.sequence, place.identity)


def look_ahead(scan: Callable[..., ScanPage], unless: Unless, end: int) -> Unless:
    """Examines the next page of the log for a condition, by `StoreEngine.scan`, on any thread. Returns it with the place that
    was reached, or the event that was found. `end`: the last visible sequence.

    Raises:
        Diverged: the place is beyond the end, or of another history.
        Corrupt, ReadFailed
    """
    after = unless.after
    check_start(after.sequence, end)
    check_place(scan, after)
    page = scan(after.sequence, unless.wanted, _PAGE_BYTES, None)  # the first ones may be of another slot
    found = _first_of(unless, decode_page(page.records), after.sequence)
    return unless._replace(after=LogPosition(max(page.next, after.sequence)), found=found)


def _first_of(unless: Unless, events: Iterable[Event], after: int) -> Event | None:
    wanted = unless.wanted
    passing = (event for event in events if event[7] > after and wanted.matches(event))
    return next((event for event in passing if not event[0].startswith(LOG_RECORDS)), None)
