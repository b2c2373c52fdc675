"""A persistence module for the library `eventsourcing`: `PERSISTENCE_MODULE=eventstore.adapters.eventsourcing`.

It needs the extra `eventsourcing`, and the setting EVENTSTORE_STORE, the address of a server. docs/EVENTSOURCING.md says what
becomes of aggregates, notifications, tracking and tags. The library finds the only factory in this module, for applications and
for those with dynamic consistency boundaries.
"""

from eventstore.adapters.eventsourcing.factory import EventStoreFactory

__all__ = ["EventStoreFactory"]
