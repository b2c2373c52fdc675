"""The tracking recorder: how far an application has processed each upstream application.

Of each upstream application there is an aggregate, whose last event has the id of the last notification that was processed. Its
version is the condition under which the next one is committed, in the process recorder together with the events made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from eventsourcing.persistence import IntegrityError, Tracking, TrackingRecorder

from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.errors import VersionConflict
from eventstore.model import NewEvent, Write

T = TypeVar("T")
_KIND: Final = "tracking"
_TYPE: Final = "Tracked"
_FIELD: Final = "notification_id"


class _Place(NamedTuple):
    version: int
    notification_id: int | None


class EventStoreTrackingRecorder(TrackingRecorder):
    """Records the place in each upstream application, which only grows."""

    def __init__(self, scoped: ScopedStore) -> None:
        self.scoped = scoped
        self._known: dict[str, _Place] = {}
        """By upstream application, a place that it has reached: newer ones may be recorded by others."""

    def insert_tracking(self, tracking: Tracking) -> None:
        """Records a place.

        Raises:
            IntegrityError: it is not behind the one that is recorded.
            DataError: the name of the application is too long.
            OperationalError: the server did not answer in time; it may be recorded.
        """
        with persistence_errors():
            self._record(tracking, lambda tracked: self.scoped.store.append(*tracked))

    def max_tracking_id(self, application_name: str) -> int | None:
        """Returns the notification id that is recorded for an application; None if none is."""
        with persistence_errors():
            return self._recorded_place(application_name).notification_id

    def _record(self, tracking: Tracking, commit: Callable[[Write], T]) -> T:
        """Records a place by `commit`, which gets what to write beside its own, and is called again after a conflict about it.

        Raises:
            IntegrityError: the place is not behind the one that is recorded. Other errors of `commit` are raised as they are.
        """
        application = tracking.application_name
        place = self._known.get(application) or self._recorded_place(application)
        while True:
            if place.notification_id is not None and place.notification_id >= tracking.notification_id:
                raise IntegrityError(
                    f"notification {tracking.notification_id} of {application} is not behind the one that is recorded, "
                    f"{place.notification_id}"
                )
            aggregate_id = self.scoped.aggregate_id(_KIND, application)
            event = NewEvent(_TYPE, {_FIELD: tracking.notification_id})
            try:
                done = commit(Write(aggregate_id, [event], place.version))
            except VersionConflict as conflict:
                if conflict.fields["aggregate_id"] != aggregate_id:
                    raise
                place = self._recorded_place(application)
            else:
                self._known[application] = _Place(place.version + 1, tracking.notification_id)
                return done

    def _recorded_place(self, application: str) -> _Place:
        aggregate_id = self.scoped.aggregate_id(_KIND, application)
        last = self.scoped.last_event(aggregate_id)
        place = _Place(0, None) if last is None else _Place(last.version, cast(dict[str, int], last.json())[_FIELD])
        self._known[application] = place
        return place
