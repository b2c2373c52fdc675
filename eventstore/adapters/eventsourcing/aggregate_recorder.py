"""The aggregate recorder: the events of each originator are those of one aggregate, without gaps between their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import AggregateRecorder, DataError, IntegrityError, NotSupportedError, StoredEvent

from eventstore.adapters.eventsourcing.persistence_errors import persistence_errors
from eventstore.adapters.eventsourcing.scoped_store import ScopedStore
from eventstore.adapters.eventsourcing.stored_versions import new_event, originator_version, stored_event
from eventstore.errors import VersionConflict
from eventstore.model import Committed, Write

_IDS_KEPT: Final = 10_000  # of a few hundred bytes each


class EventStoreAggregateRecorder(AggregateRecorder):
    """Inserts and selects events by originator."""

    def __init__(self, scoped: ScopedStore, purpose: str = "events") -> None:
        """`purpose`: which of the application's aggregates they are; others have other ids."""
        self._scoped = scoped
        self._purpose = purpose
        self._begins: dict[str, int] = {}
        """By aggregate, as far as it is known, the library's version of its first event, 0 or 1: it never changes."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Inserts all of them or none. Returns None.

        Raises:
            IntegrityError: an originator has another version than these events continue, so also for a gap.
            NotSupportedError: the events of an originator do not follow each other in `stored_events`.
            DataError: an id or topic is longer than 255 bytes, an event than 4 MiB, all of them than 16 MiB, or there are more
                than 100,000, or of more than 1,000 originators.
            OperationalError: the server did not answer in time; they may be stored.
        """
        with persistence_errors():
            self._insert(stored_events)
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
        """Returns up to `limit` events with versions above `gt` and up to `lte`; `desc`: the last first."""
        first = 1 if gt is None else max(gt + 1, 1)
        last = None if lte is None else max(lte + 1, 0)
        most = None if limit is None else limit + 1  # at one end, one more than is wanted may be in the range
        found: list[StoredEvent] = []
        with persistence_errors():
            aggregate_id = self._scoped.aggregate_id(self._purpose, originator_id)
            for event in self._scoped.store.read(aggregate_id, first, last, desc, most):
                stored = stored_event(event, originator_id)
                self._remember(aggregate_id, stored.originator_version - event.version + 1)
                if (gt is None or stored.originator_version > gt) and (lte is None or stored.originator_version <= lte):
                    found.append(stored)
        return found if limit is None else found[:limit]

    def _insert(self, stored_events: Sequence[StoredEvent], tracked: Write | None = None) -> list[int]:
        """Inserts the events, and `tracked` with them, and returns the sequence of each event. Raises errors of the store, and
        those of the library that `insert_events` names.
        """
        runs = self._runs(stored_events)
        expected = {each: self._version_before(each, run[0].originator_version) for each, run in runs.items()}
        while True:
            writes = [_write(each, run, expected[each]) for each, run in runs.items()]
            try:
                done = self._commit(writes if tracked is None else [*writes, tracked])
                break
            except VersionConflict as conflict:
                named = str(conflict.fields["aggregate_id"])
                if named not in runs or named in self._begins:
                    raise
                self._look_up(named)
                actual = self._version_before(named, runs[named][0].originator_version)
                if actual == expected[named]:
                    raise
                expected[named] = actual
        for each, run in runs.items():
            self._remember(each, run[0].originator_version - expected[each])
        return [
            committed.sequence - len(run) + place
            for committed, run in zip(done, runs.values(), strict=False)  # the tracked one comes last
            for place in range(1, len(run) + 1)
        ]

    def _commit(self, writes: list[Write]) -> list[Committed]:
        store = self._scoped.store
        if len(writes) > 1:
            return store.commit(writes)
        return [store.append(*each) for each in writes]

    def _runs(self, stored_events: Sequence[StoredEvent]) -> dict[str, list[StoredEvent]]:
        """Returns the events of each aggregate, in the order in which they are given."""
        runs: dict[str, list[StoredEvent]] = {}
        last = ""
        for stored in stored_events:
            if stored.originator_version < 0:
                raise DataError(f"version {stored.originator_version} of {stored.originator_id}; versions begin at 0 or 1")
            aggregate_id = self._scoped.aggregate_id(self._purpose, stored.originator_id)
            if aggregate_id not in runs:
                runs[aggregate_id] = [stored]
            elif aggregate_id != last:
                raise NotSupportedError(
                    f"events of {stored.originator_id} come before and after those of another aggregate; collect those of each "
                    "aggregate once, so that they follow each other"
                )
            elif stored.originator_version != runs[aggregate_id][-1].originator_version + 1:
                raise IntegrityError(
                    f"version {stored.originator_version} of {stored.originator_id} comes after version "
                    f"{runs[aggregate_id][-1].originator_version}; versions have no gaps here"
                )
            else:
                runs[aggregate_id].append(stored)
            last = aggregate_id
        return runs

    def _version_before(self, aggregate_id: str, version: int) -> int:
        """Returns the version here before the library's `version`. Of an aggregate that seems new it is a guess, which a
        conflict corrects.
        """
        if version > 1 and aggregate_id not in self._begins:
            self._look_up(aggregate_id)
        return max(version - self._begins.get(aggregate_id, 1), 0)

    def _look_up(self, aggregate_id: str) -> None:
        if (last := self._scoped.last_event(aggregate_id)) is not None:
            self._remember(aggregate_id, originator_version(last) - last.version + 1)

    def _remember(self, aggregate_id: str, begins: int) -> None:
        if len(self._begins) >= _IDS_KEPT and aggregate_id not in self._begins:
            self._begins.clear()
        self._begins[aggregate_id] = begins


def _write(aggregate_id: str, run: list[StoredEvent], expected: int) -> Write:
    events = [new_event(stored, version) for version, stored in enumerate(run, expected + 1)]
    return Write(aggregate_id, events, expected)
