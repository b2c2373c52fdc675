"""Notifications: events of an application in the order of its shard's log, with their sequence as id."""

from __future__ import annotations

from eventsourcing.persistence import Notification

from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.stored_versions import originator_version
from eventstore.model import Event

KIND = "events"
"""What the ids of the aggregates begin with that have notifications, behind the scope."""


def notification(event: Event, scoped: ScopedStore) -> Notification:
    """Returns an event of the log as the library has it."""
    originator_id = scoped.originator_id(KIND, event.aggregate_id)
    return Notification(originator_id, originator_version(event), event.type, event.data, event.sequence)
