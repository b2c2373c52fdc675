"""Cursors: which page to ask for next, and which of a page's events were asked for. Sans-io; both clients walk them.

A page holds whole commits, so its first and last ones may reach beyond what was asked for; a cursor takes those events
off again. A cursor never asks for the same place twice: a page that does not move on is an error, not an endless loop.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.model import Event
from eventstore.protocol.answers import Page
from eventstore.protocol.fields import shown
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.protocol.requests import Read, ReadAll, Request
from eventstore.store.page import decode_page


class Cursor(Protocol):
    """A walk over pages. `done`: there is nothing more to ask for."""

    done: bool

    def request(self) -> Request:
        """What to ask for next. The first one raises InvalidArgument where an argument breaks a limit."""

    def take(self, page: Page) -> list[Event]:
        """The events of the answer that were asked for, and a step on.

        Raises:
            ProtocolError: the page is malformed or leads nowhere.
        """


class AggregateCursor:
    """Over one aggregate's events."""

    def __init__(
        self, aggregate_id: str, from_version: int, to_version: int | None, backwards: bool, limit: int | None
    ) -> None:
        self._asked = Read(aggregate_id, from_version, to_version, backwards, limit, PAGE_BYTES_DEFAULT)
        self.done = limit == 0 or (to_version is not None and to_version < from_version)

    def request(self) -> Read:
        return self._asked

    def take(self, page: Page) -> list[Event]:
        asked = self._asked
        events = decode_page(page.records)
        if events:
            first = events[0].version
            low = max(0, asked.from_version - first)
            high = len(events) if asked.to_version is None else max(0, asked.to_version - first + 1)
            if low or high < len(events):
                events = events[low:high]
        if asked.backwards:
            events.reverse()
        self._step(page.next, events)
        return events

    def _step(self, following: int | None, events: list[Event]) -> None:
        asked = self._asked
        left = _take_off(events, asked.events_max)
        self.done = following is None or left == 0
        if following is None or self.done:
            return
        low, high = asked.from_version, asked.to_version
        if (high is not None and following >= high) if asked.backwards else following <= low:
            raise _stuck(following)
        if asked.backwards:
            high = following
        else:
            low = following
        self.done = high is not None and high < low
        self._asked = Read(asked.aggregate_id, low, high, asked.backwards, left, asked.bytes_max)


class LogCursor:
    """Over the whole log, filtered."""

    def __init__(
        self,
        after: int,
        limit: int | None,
        aggregate_prefix: str | None,
        from_time: int | None,
        to_time: int | None,
        types: Collection[str] | None,
    ) -> None:
        self._asked = ReadAll(
            after, limit, PAGE_BYTES_DEFAULT, aggregate_prefix or None, from_time, to_time, checked_types(types)
        )
        self._accepts = EventFilter(aggregate_prefix, types, from_time, to_time)
        self.done = limit == 0

    def request(self) -> ReadAll:
        return self._asked

    def take(self, page: Page) -> list[Event]:
        asked = self._asked
        events = self._accepts.select(decode_page(page.records), asked.after)
        left = _take_off(events, asked.events_max)
        self.done = page.at_end or left == 0
        if page.next is None or (page.next <= asked.after and not self.done):
            raise _stuck(page.next)
        self._asked = ReadAll(
            page.next, left, asked.bytes_max, asked.aggregate_prefix, asked.from_time, asked.to_time, asked.types
        )
        return events


class EventFilter:
    """Which events of a page were asked for: a record is sent whole if any of its events was."""

    def __init__(
        self,
        aggregate_prefix: str | None,
        types: Collection[str] | None,
        from_time: int | None = None,
        to_time: int | None = None,
    ) -> None:
        self._prefix = aggregate_prefix or ""
        self._types = frozenset(types or ())
        self._from_time = from_time
        self._to_time = to_time
        self._anything = not (self._prefix or self._types) and from_time is None and to_time is None

    def select(self, events: list[Event], after: int) -> list[Event]:
        """Those behind sequence `after` that pass."""
        if events and events[0].sequence <= after:
            events = [event for event in events if event.sequence > after]
        if self._anything:
            return events
        return [event for event in events if self._passes(event)]

    def _passes(self, event: Event) -> bool:
        return (
            (not self._types or event.type in self._types)
            and event.aggregate_id.startswith(self._prefix)
            and (self._from_time is None or event.timestamp >= self._from_time)
            and (self._to_time is None or event.timestamp <= self._to_time)
        )


def checked_types(types: Collection[str] | None) -> tuple[str, ...]:
    """The types of a filter as a request takes them.

    Raises:
        InvalidArgument: none at all, or one string instead of a collection of them.
    """
    if types is None:
        return ()
    if isinstance(types, str | bytes) or not types:
        raise InvalidArgument(
            f"types is {shown(types)}; it is a collection of event types, or None for all",
            field="types",
            value=shown(types),
        )
    return tuple(types)


def _take_off(events: list[Event], limit: int | None) -> int | None:
    """Cuts the events to the limit, and what is left of it then."""
    if limit is None:
        return None
    del events[limit:]
    return limit - len(events)


def _stuck(following: int | None) -> ProtocolError:
    return ProtocolError(f"a page leads back to {following}, where it was asked from", value=following)
