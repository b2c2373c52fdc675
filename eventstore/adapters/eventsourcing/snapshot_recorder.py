"""The recorder of snapshots: only the newest counts, and their versions have gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from eventsourcing.persistence import AggregateRecorder, IntegrityError, StoredEvent

from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.stored_versions import new_event, originator_version, stored_event
from eventstore.errors import VersionConflict


class EventStoreSnapshotRecorder(AggregateRecorder):
    """Inserts and selects the snapshots of each originator, which are events of an aggregate of their own."""

    def __init__(self, scoped: ScopedStore, purpose: str = "snapshots") -> None:
        """`purpose`: as of `EventStoreAggregateRecorder`."""
        self._scoped = scoped
        self._purpose = purpose

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Inserts each snapshot that is newer than those that there are, one by one; an older one is dropped. Returns None.

        Raises:
            IntegrityError: there is one of this version.
            DataError, OperationalError: as of `EventStoreAggregateRecorder`.
        """
        with persistence_errors():
            for stored in stored_events:
                while not self._is_settled(stored):
                    pass
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Returns up to `limit` snapshots with versions above `gt` and up to `lte`; `desc`: the last first."""
        found: list[StoredEvent] = []
        last = None if lte is None else max(lte + 1, 0)
        with persistence_errors():
            aggregate_id = self._scoped.aggregate_id(self._purpose, originator_id)
            most = limit if gt is None and lte is None else None
            for event in self._scoped.store.read(aggregate_id, to_version=last, backwards=desc, limit=most):
                if limit is not None and len(found) >= limit:
                    break
                stored = stored_event(event, originator_id)
                version = stored.originator_version
                if (gt is None or version > gt) and (lte is None or version <= lte):
                    found.append(stored)
                elif found:  # the others are beyond the other end
                    break
        return found

    def _is_settled(self, stored: StoredEvent) -> bool:
        """Tries to insert a snapshot; False: another one came first."""
        aggregate_id = self._scoped.aggregate_id(self._purpose, stored.originator_id)
        last = self._scoped.last_event(aggregate_id)
        newest, version = (-1, 0) if last is None else (originator_version(last), last.version)
        if stored.originator_version == newest:
            raise IntegrityError(f"there is a snapshot of {stored.originator_id} at version {newest}")
        if stored.originator_version < newest:
            return True
        try:
            self._scoped.store.append(aggregate_id, [new_event(stored, version + 1)], version)
        except VersionConflict:
            return False
        return True
