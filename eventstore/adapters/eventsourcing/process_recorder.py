"""The process recorder: events, and the place in an upstream application that they were made of, in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import ProcessRecorder, StoredEvent, Tracking

from eventstore.adapters.eventsourcing.application_recorder import EventStoreApplicationRecorder
from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.tracking_recorder import EventStoreTrackingRecorder


class EventStoreProcessRecorder(EventStoreTrackingRecorder, EventStoreApplicationRecorder, ProcessRecorder):
    """Records events and tracking: both or neither."""

    def __init__(self, scoped: ScopedStore) -> None:
        EventStoreApplicationRecorder.__init__(self, scoped)
        EventStoreTrackingRecorder.__init__(self, scoped)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """As of `EventStoreApplicationRecorder`; a `tracking` among `kwargs` is recorded with the events. Raises IntegrityError
        also if that is not behind the one that is recorded: nothing is inserted then.
        """
        tracking: Tracking | None = kwargs.get("tracking")
        with persistence_errors():
            if tracking is None:
                return self._insert(stored_events)
            return self._record(tracking, lambda tracked: self._insert(stored_events, tracked))
