"""The filter of `read_all` and `subscribe`: by event type, aggregate, prefix of its id, time, and a query.

It is applied twice. Next to the files it is applied to whole commits, so that other commits are not read. The reader applies it
to each event, because a commit is delivered whole if any of its events passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.model import FILTER_TYPES_MAX, TYPE_BYTES_MAX, Event, micros
from eventstore.query import Query, check_query
from eventstore.records.slots import slot_of

LOG_RECORDS: Final = "$split{"
"""The ids of the log's own commits begin with this: they are the first of event files that a split has begun. Readers do not
get them, nor are they listed, unless they are asked for by their id or a prefix.
"""
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class EventFilter:
    """A condition that is None lets every event pass. Times are in µs, both ends included. `slot`: of its aggregate."""

    types: frozenset[str] | None = None
    aggregate_prefix: str | None = None
    from_time: int | None = None
    to_time: int | None = None
    aggregate_id: str | None = None
    query: Query | None = None
    slot: int | None = None

    @property
    def everything(self) -> bool:
        return self == EVERYTHING

    @property
    def names_log_records(self) -> bool:
        """Whether the reader has asked for the log's own commits."""
        named = self.aggregate_id or self.aggregate_prefix
        return named is not None and (named.startswith(LOG_RECORDS) or LOG_RECORDS.startswith(named))

    def matches(self, event: Event) -> bool:
        return (
            (self.types is None or event[2] in self.types)
            and (self.aggregate_prefix is None or event[0].startswith(self.aggregate_prefix))
            and (self.aggregate_id is None or event[0] == self.aggregate_id)
            and (self.from_time is None or event[6] >= self.from_time)
            and (self.to_time is None or event[6] <= self.to_time)
            and (self.query is None or self.query.matches(event))
            and (self.slot is None or slot_of(event[0]) == self.slot)
        )

    def may_match_in(self, records: bytes) -> bool:
        """Returns False if no event in these records can pass, because no wanted type, prefix, id or tag occurs in their bytes.
        The search runs at memory speed, a hundred times faster than decoding.
        """
        begins = (self.aggregate_prefix, self.aggregate_id)
        return (
            (self.types is None or any(name.encode() in records for name in self.types))
            and all(each is None or each.encode() in records for each in begins)
            and (self.query is None or self.query.may_match_in(records))
        )

    def select(self, events: list[Event], after: int) -> list[Event]:
        """Returns the events after sequence `after` that pass; `events` are in order of sequence."""
        if events and events[0][7] <= after:
            events = [event for event in events if event[7] > after]
        return events if self.everything else [event for event in events if self.matches(event)]


EVERYTHING: Final = EventFilter()


def event_filter(
    types: Iterable[str] | None = None,
    aggregate_prefix: str | None = None,
    from_time: int | datetime | None = None,
    to_time: int | datetime | None = None,
    aggregate_id: str | None = None,
    query: Query | None = None,
) -> EventFilter:
    """Returns the filter for a user's arguments. An empty prefix lets every event pass; an empty collection of types is
    refused, because it could mean everything or nothing.

    Raises:
        InvalidArgument: also for types beside a query.
    """
    if query is not None and types is not None:
        raise InvalidArgument("types beside a query; give them to the query: Query(types=…, tags=…)", field="types")
    if aggregate_prefix is not None:
        check_text("aggregate_prefix", aggregate_prefix, 0)
    if aggregate_id is not None:
        check_text("aggregate_id", aggregate_id)
    return EventFilter(
        _checked_types(types),
        aggregate_prefix or None,
        _checked_time("from_time", from_time),
        _checked_time("to_time", to_time),
        aggregate_id,
        None if query is None else check_query(query),
    )


def _checked_types(types: Iterable[str] | None) -> frozenset[str] | None:
    if types is None:
        return None
    try:
        names = [] if isinstance(types, str | bytes) else list(types)
    except TypeError:
        names = []
    if not names:
        raise InvalidArgument(
            f"types is {shown(types)}; give a list of event types, or None for all", field="types", value=shown(types)
        )
    for name in names:
        check_text("types", name, 1, TYPE_BYTES_MAX)
    chosen = frozenset(names)
    if len(chosen) > FILTER_TYPES_MAX:
        raise InvalidArgument(
            f"{len(chosen)} event types, the limit is {FILTER_TYPES_MAX}",
            field="types",
            limit=FILTER_TYPES_MAX,
            value=len(chosen),
        )
    return chosen


def _checked_time(name: str, time: int | datetime | None) -> int | None:
    exact = micros(time, name)
    return None if exact is None else check_int(name, exact, _INT64_MIN, _INT64_MAX)
