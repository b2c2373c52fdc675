"""Cursors: which page to ask for next, and which of a page's events were asked for. Sans-io; the embedded store and the
clients walk the same ones.

A page holds whole commits, so its first and last ones may reach beyond what was asked for; a cursor takes those events
off again. A cursor never asks for the same place twice: a page that does not move on is an error, not an endless loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from eventstore.errors import ProtocolError
from eventstore.fields import check_flag, check_int, check_optional_int, check_text
from eventstore.model import VERSION_MAX, Event
from eventstore.store.event_filter import event_filter
from eventstore.store.page import decode_page


class AggregatePage(Protocol):
    """Commits of one aggregate, ascending. `next`: the end of the range to go on from, None if nothing is left."""

    @property
    def records(self) -> bytes | memoryview: ...

    @property
    def next(self) -> int | None: ...


class LogPage(AggregatePage, Protocol):
    """Commits in the order of the log. `next`: the sequence to go on behind; `at_end`: there is nothing yet."""

    @property
    def at_end(self) -> bool: ...


class AggregateCursor:
    """Over one aggregate's events in [low, high] (None: to the last one); `left`: how many at most (None: all).

    `done`: there is nothing more to ask for.
    """

    __slots__ = ("aggregate_id", "backwards", "done", "high", "left", "low")

    def __init__(
        self, aggregate_id: str, from_version: int, to_version: int | None, backwards: bool, limit: int | None
    ) -> None:
        """Raises InvalidArgument for what no aggregate can have. A range beyond its end is fine, and empty."""
        self.aggregate_id = check_text("aggregate_id", aggregate_id)
        self.low = check_int("from_version", from_version, 1, VERSION_MAX)
        self.high = check_optional_int("to_version", to_version, 0, VERSION_MAX)
        self.backwards = check_flag("backwards", backwards)
        self.left = check_optional_int("limit", limit, 0, VERSION_MAX)
        self.done = limit == 0 or (to_version is not None and to_version < from_version)

    def take(self, page: AggregatePage) -> list[Event]:
        """The events of the page that were asked for, and a step on.

        Raises:
            ProtocolError: the page is malformed or leads nowhere.
        """
        events = decode_page(page.records)
        if events:
            first = events[0].version
            start = max(0, self.low - first)
            stop = len(events) if self.high is None else max(0, self.high - first + 1)
            if start or stop < len(events):
                events = events[start:stop]
        if self.backwards:
            events.reverse()
        self.left = _take_off(events, self.left)
        self._step(page.next)
        return events

    def _step(self, following: int | None) -> None:
        if following is None or self.left == 0:
            self.done = True
            return
        if (self.high is not None and following >= self.high) if self.backwards else following <= self.low:
            raise _stuck(following)
        if self.backwards:
            self.high = following
        else:
            self.low = following
        self.done = self.high is not None and self.high < self.low


class LogCursor:
    """Over everything behind sequence `after` that `wanted` lets through; `left` and `done` as above."""

    __slots__ = ("after", "done", "left", "wanted")

    def __init__(
        self,
        after: int,
        limit: int | None,
        types: Iterable[str] | None,
        aggregate_prefix: str | None,
        from_time: int | datetime | None,
        to_time: int | datetime | None,
    ) -> None:
        """Raises InvalidArgument."""
        self.after = check_int("after", after, 0, VERSION_MAX)
        self.left = check_optional_int("limit", limit, 0, VERSION_MAX)
        self.wanted = event_filter(types, aggregate_prefix, from_time, to_time)
        self.done = limit == 0

    def take(self, page: LogPage) -> list[Event]:
        """As `AggregateCursor.take`."""
        events = self.wanted.select(decode_page(page.records), self.after)
        self.left = _take_off(events, self.left)
        self.done = page.at_end or self.left == 0
        if page.next is None or (page.next <= self.after and not self.done):
            raise _stuck(page.next)
        self.after = page.next
        return events


def _take_off(events: list[Event], left: int | None) -> int | None:
    """Cuts the events to what is left of the limit; what is left of it then."""
    if left is None:
        return None
    del events[left:]
    return left - len(events)


def _stuck(following: int | None) -> ProtocolError:
    return ProtocolError(f"a page leads back to {following}, where it was asked from", value=following)
