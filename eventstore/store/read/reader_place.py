"""Checks that a reader continues in the history that it has read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from eventstore.event_identity import LogPosition, check_identity
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.store.read.scan import ScanPage

_EVERYTHING: Final = EventFilter()
_NEXT_STEP: Final = "what was derived from its events may hold some that are gone: derive it again, from the first event"


def check_place(scan: Callable[..., ScanPage], place: LogPosition) -> None:
    """Checks that the event at a reader's place is still the same. Reads one record of the log by `StoreEngine.scan`, or
    nothing if the place has no identity. For threads. A leader calls it before a reader continues (R13 of ADR 14).

    Raises:
        Diverged: the event there is another one, or there is none.
        Corrupt, ReadFailed
    """
    if place.identity:
        page = scan(place.sequence - 1, _EVERYTHING, 1, 1, whole=True)
        found = next((event for event in decode_page(page.records) if event.sequence == place.sequence), None)
        check_identity("a position", place.sequence, place.identity, found, _NEXT_STEP)
