"""The recorder for dynamic consistency boundaries: finds events by types and tags, appends unless a query finds one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, cast
from uuid import uuid4

from eventsourcing.dcb.api import (
    DCBAppendCondition,
    DCBEvent,
    DCBQuery,
    DCBQueryItem,
    DCBReadResponse,
    DCBRecorder,
    DCBSequencedEvent,
)
from eventsourcing.persistence import ProgrammingError

from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.subscriptions import EventStoreDCBSubscription
from eventstore.adapters.eventsourcing.tagged_events import DCB_KIND, new_tagged_event, query_of, sequenced_event
from eventstore.client.blocking.streams import BlockingLogStream
from eventstore.model import ANY, Event, Write

_ITEMS_PER_READ: Final = 32  # so that each has room for 2 KiB of types and tags
_COMMITS_PER_AGGREGATE: Final = 1_000  # an aggregate for each would fill the directory; of one, the store keeps every command


class EventStoreDCBRecorder(DCBRecorder):
    """Reads and appends events with tags. The position of an event is its sequence in the log of the scope's shard."""

    def __init__(self, scoped: ScopedStore) -> None:
        self.scoped = scoped
        self._name = uuid4().hex
        self._commits = count()

    def read(self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None) -> DCBReadResponse:
        """Returns the events behind `after` that pass the query, in order, at most `limit`.

        Its `head` is where the log ended when it was read: a condition after it fails for later events only. With a limit it is
        the position of the last event, None if there is none.

        Raises:
            DataError: an item has more than 256 types or 32 tags, or a text that no event can have.
        """
        items = query.items if query else []
        found: dict[int, Event] = {}
        ends: list[int] = []
        with persistence_errors():
            for some in _in_parts(items):
                stream = self.scoped.shard.read_all(after or 0, None, self.scoped.prefix(DCB_KIND), limit, query=query_of(some))
                found.update((event.sequence, event) for event in stream)
                ((end, _),) = cast(BlockingLogStream, stream).position.shards.values()
                ends.append(end)
        known = [found[sequence] for sequence in sorted(found) if sequence <= min(ends)]
        if limit is None:
            return _ReadResponse(known, min(ends) or None)
        return _ReadResponse(known[:limit], known[:limit][-1].sequence if known[:limit] else None)

    def append(self, events: Sequence[DCBEvent], condition: DCBAppendCondition | None = None) -> int:
        """Appends the events, all or none, and returns the position of the last one.

        Raises:
            IntegrityError: an event behind the condition's `after` passes its query.
            ProgrammingError: there are no events.
            DataError: an event has more than 32 tags, one of them is empty, longer than 255 bytes or has control characters, or
                a condition has more than 64 items.
            OperationalError: the server did not answer in time; they may be stored.
        """
        if not events:
            raise ProgrammingError("append takes one event or more, and was given none")
        with persistence_errors():
            aggregate_id = self.scoped.aggregate_id(DCB_KIND, f"{self._name}-{next(self._commits) // _COMMITS_PER_AGGREGATE}")
            write = Write(aggregate_id, [new_tagged_event(each) for each in events], ANY)
            if condition is None:
                return self.scoped.store.append(*write).sequence
            unless = query_of(condition.fail_if_events_match.items)
            (done,) = self.scoped.shard.commit([write], unless=unless, after=condition.after or 0, scope=aggregate_id)
            return done.sequence

    def subscribe(self, query: DCBQuery | None = None, *, after: int | None = None) -> EventStoreDCBSubscription:
        """Returns the events behind `after` that pass the query, and goes on with new ones. Raises DataError."""
        return EventStoreDCBSubscription(self, query, after)


class _ReadResponse(DCBReadResponse):
    def __init__(self, events: Sequence[Event], head: int | None) -> None:
        self._events: Iterator[DCBSequencedEvent] = map(sequenced_event, events)
        self._head = head

    @property
    def head(self) -> int | None:
        return self._head

    def __next__(self) -> DCBSequencedEvent:
        return next(self._events)


def _in_parts(items: Sequence[DCBQueryItem]) -> list[Sequence[DCBQueryItem]]:
    """Returns the items in parts that a query can have; of none, one part of none."""
    return [items[at : at + _ITEMS_PER_READ] for at in range(0, max(len(items), 1), _ITEMS_PER_READ)]
