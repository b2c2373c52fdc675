"""Cursors over pages of events: which page to request next, and which of its events were requested. Sans-io; the embedded
store and the clients use the same cursors.

A page holds whole commits, so its first and last commits may contain events outside the requested range; the cursor removes
them. A cursor never requests the same position twice: a page that makes no progress is an error, not an endless loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, Protocol

from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.event_identity import LogPosition
from eventstore.fields import check_flag, check_int, check_optional_int, check_text, shown
from eventstore.model import REPLAYED_MAX, REPLAYED_PER_PAGE_MAX, VERSION_MAX, Event, PersonalEvent
from eventstore.records.event_filter import EVERYTHING, EventFilter
from eventstore.records.event_page import PersonalPage, decode_page, settle

_AGGREGATE_ID: Final = itemgetter(0)  # of an Event
_VERSION: Final = itemgetter(1)


class AggregatePage(Protocol):
    """Commits of one aggregate, ascending.

    Attributes:
        next: the version to continue at; None after the last page.
    """

    @property
    def records(self) -> bytes | memoryview: ...

    @property
    def next(self) -> int | None: ...


class LogPage(AggregatePage, Protocol):
    """Commits in log order.

    Attributes:
        next: the sequence to continue after; of a page that is read backwards, before.
        at_end: nothing more is stored yet; of a page that is read backwards: nothing is older.
        identity: of the event at `next`, its first 8 digits; empty if that is not known.
    """

    @property
    def at_end(self) -> bool: ...

    @property
    def identity(self) -> str: ...


class AggregateCursor:
    """Walks one aggregate's events in [low, high]; `high` None: to the last one.

    Attributes:
        left: how many events at most; None: all.
        done: there is nothing more to request.
        personal: the events with a subject of the last page, as they were taken: encrypted.
    """

    __slots__ = ("_continued", "aggregate_id", "backwards", "done", "high", "left", "low", "personal")

    def __init__(
        self, aggregate_id: str, from_version: int, to_version: int | None, backwards: bool, limit: int | None
    ) -> None:
        """Raises InvalidArgument for an impossible id or range. A range beyond the aggregate's end is valid, and empty."""
        self.aggregate_id = check_text("aggregate_id", aggregate_id)
        self.low = check_int("from_version", from_version, 1, VERSION_MAX)
        self.high = check_optional_int("to_version", to_version, 0, VERSION_MAX)
        self.backwards = check_flag("backwards", backwards)
        self.left = check_optional_int("limit", limit, 0, VERSION_MAX)
        self.done = limit == 0 or (to_version is not None and to_version < from_version)
        self._continued = False
        self.personal: Sequence[PersonalEvent] = ()

    def take(self, page: AggregatePage) -> list[Event]:
        """Returns the requested events of the page, and moves on.

        Raises:
            ProtocolError: the page is malformed, lacks events, holds events of another aggregate, or makes no progress.
        """
        events = decode_page(page.records)
        self.personal = personal_in(events) if events.__class__ is PersonalPage else ()
        if set(map(_AGGREGATE_ID, events)) - {self.aggregate_id}:
            raise _of_another(self.aggregate_id)
        if self._lacks_events(events, page.next):
            raise _incomplete(self.aggregate_id, events, page.next)
        if events:
            first = events[0].version
            start = max(0, self.low - first)
            stop = len(events) if self.high is None else max(0, self.high - first + 1)
            if start or stop < len(events):
                events = events[start:stop]
        if self.backwards:
            events.reverse()
        self.left = _cut_to_limit(events, self.left)
        self._step(page.next)
        return events

    def _lacks_events(self, events: list[Event], following: int | None) -> bool:
        """Whether versions are missing before, between or after the page's events: an aggregate has no gaps.

        Only the aggregate's end is unknown, so the first page may be empty, and a first page backwards may end anywhere.
        """
        if not events:
            return self._continued or following is not None
        first, last = events[0].version, events[-1].version
        if list(map(_VERSION, events)) != list(range(first, last + 1)):  # in C loops: 4 % of what decoding them took
            return True
        if not self.backwards:
            return first > self.low or (following is not None and following != last + 1)
        if self._continued and self.high is not None and last < self.high:
            return True
        return first > self.low if following is None else following != first - 1

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
        self._continued = True
        self.done = self.high is not None and self.high < self.low


class ManyCursor:
    """Walks the events of several aggregates up to one place of the log, those of the first, then those of the second.

    Attributes:
        events: what was found of each.
        place: up to which they are read; None until the first page.
        done: there is nothing more to request.
        personal: the events with a subject of the last page, as they were taken: encrypted.
    """

    __slots__ = ("_left", "done", "events", "personal", "place")

    def __init__(self, ids: Iterable[str]) -> None:
        """Raises InvalidArgument: these are not 1 to 1,000 ids."""
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise InvalidArgument(f"ids is {shown(ids)}; it is a list of ids of aggregates", field="ids", value=shown(ids))
        names = [check_text("ids", name) for name in islice(ids, REPLAYED_MAX + 1)]
        if not 1 <= len(names) <= REPLAYED_MAX:
            raise InvalidArgument(
                f"{'too many' if names else 'no'} ids, allowed are 1 to {REPLAYED_MAX}; read others by another "
                "call, at the position that the first one returns",
                field="ids",
                limit=REPLAYED_MAX,
                value=len(names),
            )
        self.events: dict[str, list[Event]] = {name: [] for name in names}
        self._left = list(self.events)
        self.place: LogPosition | None = None
        self.done = False
        self.personal: Sequence[PersonalEvent] = ()

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """The aggregates of the next page, each with the version to begin at."""
        return tuple((name, len(self.events[name]) + 1) for name in self._left[:REPLAYED_PER_PAGE_MAX])

    def take(self, page: LogPage) -> None:
        """Takes the page of these `rows`.

        Raises:
            ProtocolError: the page is malformed, of a later place, or lacks events.
        """
        place = LogPosition(page.next or 0, page.identity)
        if self.place is not None and self.place.sequence < place.sequence:  # a split may have made it smaller
            raise ProtocolError(f"a page up to {self.place} goes up to {place}", field="next", value=str(place))
        self.place = place
        found = decode_page(page.records)
        self.personal = personal_in(found) if found.__class__ is PersonalPage else ()
        for name, events in groupby(found, _AGGREGATE_ID):
            self._add(name, list(events), place.sequence)
        last = self._left.index(found[-1].aggregate_id) if found and not page.at_end else 0
        if not (found or page.at_end):
            raise _stuck(page.next)
        self._left = self._left[REPLAYED_PER_PAGE_MAX:] if page.at_end else self._left[last:]
        self.done = not self._left

    def _add(self, aggregate_id: str, events: list[Event], through: int) -> None:
        if aggregate_id not in self._left:
            raise _of_another(aggregate_id)
        known = self.events[aggregate_id]
        first = len(known) + 1
        events = events[max(0, first - events[0].version) :]  # a commit that began before
        if not events or list(map(_VERSION, events)) != list(range(first, first + len(events))) or events[-1][7] > through:
            raise _incomplete(aggregate_id, events, first)
        known += events


class LogCursor:
    """Walks the events after sequence `after` that pass the filter `wanted`; `backwards` the events before it, newest first.

    Attributes:
        left: how many events at most; None: all.
        done: there is nothing more to request.
        place: the same as `after`, with the identity of that event as long as the store must check it.
        end: the place where the last page ended, if all its events were wanted; None: that is not known, or within the page.
        layout: the layout of the shard's slots that it reads by; None until its first request: whatever the shard has then.
        personal: the events with a subject of the last page, as they were taken: encrypted.
    """

    __slots__ = (
        "_connection",
        "_identity",
        "_last",
        "after",
        "backwards",
        "done",
        "end",
        "layout",
        "left",
        "personal",
        "wanted",
    )

    def __init__(
        self,
        after: LogPosition | int,
        limit: int | None,
        wanted: EventFilter = EVERYTHING,
        *,
        backwards: bool = False,
    ) -> None:
        """Raises InvalidArgument."""
        start = after if isinstance(after, LogPosition) else LogPosition(after)
        self.after, self._identity = check_int("after", start.sequence, 0, VERSION_MAX), start.identity
        self._last: LogPosition | Event = start
        self._connection: object = None
        self.end: LogPosition | None = None
        self.layout: int | None = None
        self.left = check_optional_int("limit", limit, 0, VERSION_MAX)
        self.personal: Sequence[PersonalEvent] = ()
        self.wanted = wanted
        self.backwards = backwards
        self.done = limit == 0

    @property
    def place(self) -> LogPosition:
        return LogPosition(self.after, self._identity)

    def use(self, connection: object) -> None:
        """Requests the next page over this connection. If it is another connection than before, it may lead to a store that was
        restored from an older copy. So the cursor steps back to the last place that has an identity, for the store to check it,
        or to the beginning.
        """
        before, self._connection = self._connection, connection
        if before in (None, connection):
            return
        last = LogPosition.at(self._last) if isinstance(self._last, Event) else self._last
        if last.identity or last.sequence in (0, VERSION_MAX):
            self.after, self._identity = last

    def take(self, page: LogPage) -> list[Event]:
        """Same as `AggregateCursor.take`."""
        self._identity = ""
        decoded = decode_page(page.records)
        if self.backwards:
            events = [event for event in reversed(decoded) if event[7] < self.after and self.wanted.matches(event)]
        else:
            events = self.wanted.select(decoded, self.after)
            settle(events, page.next or 0)
        self.personal = personal_in(events) if decoded.__class__ is PersonalPage else ()
        found = len(events)
        self.left = _cut_to_limit(events, self.left)
        whole = page.next is not None and page.identity and len(events) == found
        self.end = LogPosition(page.next, page.identity) if whole and page.next is not None else None
        self._last = self.end or (events[-1] if events else self._last)
        self.done = page.at_end or self.left == 0
        if page.next is None or not (self.done or (page.next < self.after if self.backwards else page.next > self.after)):
            raise _stuck(page.next)
        self.after = page.next
        return events


def personal_in(events: Iterable[object]) -> Sequence[PersonalEvent]:
    """Returns those that have a subject."""
    return [event for event in events if isinstance(event, PersonalEvent)]


def _cut_to_limit(events: list[Event], left: int | None) -> int | None:
    """Cuts the events to the rest of the limit, and returns the new rest."""
    if left is None:
        return None
    del events[left:]
    return left - len(events)


def _incomplete(aggregate_id: str, events: list[Event], following: int | None) -> ProtocolError:
    held = f"{len(events)} events, versions {events[0].version} to {events[-1].version}" if events else "no events"
    return ProtocolError(
        f"a page of aggregate {shown(aggregate_id)} lacks events: it holds {held}, and the next one begins at {following}. "
        "Read again; if it persists, run `eventstore verify`",
        field="records",
        value=len(events),
    )


def _of_another(aggregate_id: str) -> ProtocolError:
    return ProtocolError(
        f"a page of aggregate {shown(aggregate_id)} holds events of another aggregate. Run `eventstore verify`",
        field="records",
        value=aggregate_id,
    )


def _stuck(following: int | None) -> ProtocolError:
    return ProtocolError(f"a page leads back to {following}, from which it was requested", value=following)
