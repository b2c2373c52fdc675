"""Checks that a reader continues in the history that it has read, and tells it where a page, or a commit, has ended in that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from eventstore.event_identity import LogPosition, check_identity, check_start
from eventstore.model import Event
from eventstore.records.event_filter import EVERYTHING
from eventstore.records.event_page import commit_end, decode_page
from eventstore.store.read.scan import ScanPage

_NEXT_STEP: Final = "what was derived from its events may hold some that are gone: derive it again, from the first event"


def check_place(scan: Callable[..., ScanPage], place: LogPosition) -> None:
    """Checks that the event at a reader's place is still the same. Reads one record of the log by `StoreEngine.scan`, or
    nothing if the place has no identity. For threads. A leader calls it before a reader continues (R13 of ADR 14).

    Raises:
        Diverged: the event there is another one, or there is none.
        Corrupt, ReadFailed
    """
    if place.identity:
        check_identity("a position", place.sequence, place.identity, _event_at(scan, place.sequence), _NEXT_STEP)


def placed(scan: Callable[..., ScanPage], page: ScanPage) -> ScanPage:
    """Returns the page with the identity of the event at its end, which a filter may have left out. Reads one record of the
    log. For threads. Raises Corrupt, ReadFailed.
    """
    event = _event_at(scan, page.next) if page.next else None
    return page if event is None else replace(page, identity=LogPosition.at(event).identity)


def place_of_commit_end(scan: Callable[..., ScanPage], place: LogPosition | None, visible: int) -> LogPosition:
    """Returns where the commit ends that has the event at a place, with all its aggregates; None: the last one, whose event has
    the sequence `visible`. Reads two records of the log at most. For threads.

    Raises:
        Diverged: the place is beyond the end, or of another history.
        Corrupt, ReadFailed
    """
    sequence = visible if place is None else place.sequence
    check_start(sequence, visible)
    if not sequence:
        return LogPosition(0)
    if place is not None:
        check_place(scan, place)
    last = _commit_at(scan, sequence)[-1]
    if (end := commit_end(last)) > last.sequence:
        last = _commit_at(scan, min(end, visible))[-1]
    return LogPosition.at(last)


def _event_at(scan: Callable[..., ScanPage], sequence: int) -> Event | None:
    return next((event for event in _commit_at(scan, sequence) if event.sequence == sequence), None)


def _commit_at(scan: Callable[..., ScanPage], sequence: int) -> list[Event]:
    """Returns the events of one aggregate in the commit that has this sequence; none if there is none."""
    return decode_page(scan(sequence - 1, EVERYTHING, 1, 1, whole=True).records)
