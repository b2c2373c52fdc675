"""The factory: makes the recorders of an application from its settings."""

from __future__ import annotations

from typing import Any, TypeVar

from eventsourcing.dcb.persistence import DCBInfrastructureFactory
from eventsourcing.persistence import AggregateRecorder, InfrastructureFactory, InfrastructureFactoryError
from eventsourcing.utils import Environment, EnvType, resolve_topic

from eventstore.adapters.eventsourcing.aggregate_recorder import EventStoreAggregateRecorder
from eventstore.adapters.eventsourcing.application_recorder import EventStoreApplicationRecorder
from eventstore.adapters.eventsourcing.dcb_recorder import EventStoreDCBRecorder
from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.process_recorder import EventStoreProcessRecorder
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.snapshot_recorder import EventStoreSnapshotRecorder
from eventstore.adapters.eventsourcing.tracking_recorder import EventStoreTrackingRecorder

T = TypeVar("T")


class EventStoreFactory(
    InfrastructureFactory[EventStoreTrackingRecorder], DCBInfrastructureFactory[EventStoreTrackingRecorder]
):
    """Makes recorders that share one connection, which the first call opens and `close` ends.

    Settings, each also with the application's name before it, as BANK_EVENTSTORE_STORE: EVENTSTORE_STORE, the address;
    EVENTSTORE_SCOPE, the name under which the store has the application, its own name in lower case unless given;
    EVENTSTORE_TOKEN.
    """

    ADDRESS = "EVENTSTORE_STORE"
    SCOPE = "EVENTSTORE_SCOPE"
    TOKEN = "EVENTSTORE_TOKEN"

    def __init__(self, env: Environment | EnvType | None) -> None:
        """Raises InfrastructureFactoryError: there is no address; DataError: it, or the scope, is malformed."""
        super().__init__(env)
        address = self.env.get(self.ADDRESS)
        if not address:
            raise InfrastructureFactoryError(f"set {self.ADDRESS} to the address of a server, as tcp://127.0.0.1:7701")
        scope = self.env.get(self.SCOPE) or self.env.name.lower() or "application"
        with persistence_errors():
            self.scoped = ScopedStore(address, scope, self.env.get(self.TOKEN) or None)

    def close(self) -> None:
        """Ends the connection; calls of its recorders raise InterfaceError from now on."""
        self.scoped.close()

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Returns a recorder of events without notifications; of snapshots, if that is the purpose."""
        if purpose == "snapshots":
            return EventStoreSnapshotRecorder(self.scoped, purpose)
        return EventStoreAggregateRecorder(self.scoped, purpose)

    def application_recorder(self) -> EventStoreApplicationRecorder:
        """Returns the recorder, of the class that APPLICATION_RECORDER_TOPIC names, if it is set."""
        return self._class(self.APPLICATION_RECORDER_TOPIC, EventStoreApplicationRecorder)(self.scoped)

    def tracking_recorder(
        self, tracking_recorder_class: type[EventStoreTrackingRecorder] | None = None
    ) -> EventStoreTrackingRecorder:
        """Returns the recorder, of the given class or the one that TRACKING_RECORDER_TOPIC names, if it is set."""
        cls = tracking_recorder_class or self._class(self.TRACKING_RECORDER_TOPIC, EventStoreTrackingRecorder)
        return cls(self.scoped)

    def process_recorder(self) -> EventStoreProcessRecorder:
        """Returns the recorder, of the class that PROCESS_RECORDER_TOPIC names, if it is set."""
        return self._class(self.PROCESS_RECORDER_TOPIC, EventStoreProcessRecorder)(self.scoped)

    def dcb_recorder(self) -> EventStoreDCBRecorder:
        """Returns the recorder for dynamic consistency boundaries."""
        return EventStoreDCBRecorder(self.scoped)

    def _class(self, setting: str, base: type[T]) -> type[T]:
        topic = self.env.get(setting)
        found: Any = resolve_topic(topic) if topic else base
        if not (isinstance(found, type) and issubclass(found, base)):
            raise InfrastructureFactoryError(f"{setting} is {topic}, which is no {base.__name__}")
        return found
