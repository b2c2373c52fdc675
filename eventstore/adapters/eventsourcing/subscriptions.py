"""Subscriptions: the server sends what is stored, then what is appended; no thread of the client asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from eventsourcing.dcb.api import DCBQuery, DCBSequencedEvent, DCBSubscription
from eventsourcing.persistence import Notification, Subscription

from eventstore.adapters.eventsourcing.notifications import KIND, notification
from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.tagged_events import DCB_KIND, query_of, sequenced_event
from eventstore.client.blocking.streams import BlockingSubscriptionStream
from eventstore.model import CaughtUp, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.adapters.eventsourcing.application_recorder import EventStoreApplicationRecorder
    from eventstore.adapters.eventsourcing.dcb_recorder import EventStoreDCBRecorder


class EventStoreSubscription(Subscription["EventStoreApplicationRecorder"]):
    """Yields the notifications of an application as they are recorded. `stop` ends it, also for a thread that waits.

    Raises OperationalError if the store has fewer events than `gt` says, or has lost its server for longer than 30 seconds.
    """

    def __init__(self, recorder: EventStoreApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()) -> None:
        """`topics`: up to 256; none: all. Raises DataError."""
        super().__init__(recorder, gt, topics)
        self._scoped = recorder.scoped
        with persistence_errors():
            stream = self._scoped.shard.subscribe(gt or 0, topics or None, self._scoped.prefix(KIND))
        self._stream = cast(BlockingSubscriptionStream, stream)

    def stop(self) -> None:
        """Ends the subscription."""
        super().stop()
        self._stream.close()

    def __next__(self) -> Notification:
        return notification(_next_event(self._stream), self._scoped)


class EventStoreDCBSubscription(DCBSubscription["EventStoreDCBRecorder"]):
    """Yields the events that pass a query, as they are appended. It ends, and fails, as `EventStoreSubscription` does."""

    def __init__(self, recorder: EventStoreDCBRecorder, query: DCBQuery | None = None, after: int | None = None) -> None:
        """`query`: up to 64 items. Raises DataError."""
        super().__init__(recorder, query, after)
        with persistence_errors():
            wanted = query_of(query.items if query else [])
            stream = recorder.scoped.shard.subscribe(after or 0, None, recorder.scoped.prefix(DCB_KIND), query=wanted)
        self._stream = cast(BlockingSubscriptionStream, stream)

    def stop(self) -> None:
        """Ends the subscription."""
        super().stop()
        self._stream.close()

    def __next__(self) -> DCBSequencedEvent:
        return sequenced_event(_next_event(self._stream))


def _next_event(stream: BlockingSubscriptionStream) -> Event:
    with persistence_errors():
        while isinstance(item := next(stream), CaughtUp):
            pass
    return item
