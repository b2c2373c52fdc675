"""The application recorder: the events of all originators of an application, also in the order in which they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import ApplicationRecorder, Notification, StoredEvent

from eventstore.adapters.eventsourcing.aggregate_recorder import EventStoreAggregateRecorder
from eventstore.adapters.eventsourcing.notifications import KIND, notification
from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.subscriptions import EventStoreSubscription


class EventStoreApplicationRecorder(EventStoreAggregateRecorder, ApplicationRecorder):
    """Inserts events, and selects them by originator or in the order of their notifications.

    The id of a notification is the sequence of its event in the shard's log: ids grow, with gaps where other events lie.
    """

    def __init__(self, scoped: ScopedStore) -> None:
        super().__init__(scoped, KIND)
        self.scoped = scoped

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """As of `EventStoreAggregateRecorder`, and returns the notification id of each event."""
        with persistence_errors():
            return self._insert(stored_events)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Returns up to `limit` notifications in order, from `start`, or behind it, to `stop`. `topics`: up to 256; none: all.

        Raises:
            DataError: a number is out of range, or a topic is malformed.
            OperationalError: the server did not answer in time.
        """
        after = 0 if start is None else max(start - 1 if inclusive_of_start else start, 0)
        found: list[Notification] = []
        with persistence_errors():
            for event in self.scoped.shard.read_all(after, topics or None, self.scoped.prefix(KIND), limit):
                if stop is not None and event.sequence > stop:
                    break
                found.append(notification(event, self.scoped))
        return found

    def max_notification_id(self) -> int | None:
        """Returns the id of the last notification; None if there is none."""
        with persistence_errors():
            newest = self.scoped.shard.read_all(aggregate_prefix=self.scoped.prefix(KIND), limit=1, backwards=True)
            return next((event.sequence for event in newest), None)

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> EventStoreSubscription:
        """Returns the notifications behind `gt`, and goes on with new ones. Raises DataError."""
        return EventStoreSubscription(self, gt, topics)
