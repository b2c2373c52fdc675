"""Parking: what a follower failed on is set aside, with later events of the same aggregate, which wait for it; others continue.

What is parked are records in the store, on a reserved id that carries the aggregate's (see `records.parking_record`). So they
survive what the events survive, and stay with their aggregate. `$Parked` adds an event, `$Unparked` takes it off and says how,
by whom and why. A record that is not of its form is passed over: events cannot be removed, and it must stop no reader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import anyio

from eventstore.errors import DomainRefused, InvalidArgument
from eventstore.fields import counted, encodable, shown
from eventstore.following.log import EventSubscription, all_durable
from eventstore.model import Committed, Event, NewEvent
from eventstore.position import After
from eventstore.protocol.reaction_info import ParkedEvent
from eventstore.records.parking_record import PARKED, PREFIX, UNPARKED, carried_by, parking_record, reserved_id

PARKED_MAX: Final = 10_000  # of one follower: 10 MB with the longest reasons
WHY_CHARACTERS_MAX: Final = 300
_log = logging.getLogger(__name__)


class ParkingStore(Protocol):
    """The part of a store that has the records, and the events that are parked."""

    def read(self, aggregate_id: str, from_version: int = 1, to_version: int | None = None) -> AsyncIterator[Event]: ...

    def read_all(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> AsyncIterable[Event]: ...

    def subscribe(self, after: After = 0) -> EventSubscription: ...

    async def append_reserved(self, aggregate_id: str, event: NewEvent) -> Committed: ...


HandleParked: TypeAlias = Callable[[ParkedEvent], Awaitable[bool]]
"""Handles a parked event; returns whether it is done."""
OnUnparked: TypeAlias = Callable[[ParkedEvent, Mapping[str, Any]], None]
"""Called with what was taken off, and the fields of the record that says so."""


def parked_note(name: str, count: int) -> str:
    """Returns what operators are told of what a follower has parked; what it is comes before."""
    return f"has {counted(count, 'event')} parked; `eventstore reactions show {name}`"


class ParkedEvents:
    """What one follower has parked: a lane for each aggregate, in its order. Belongs to one event loop. `name`: by which
    operators know the follower; `error`: why it failed last, until nothing is parked. `noted`: what records of events that are
    taken off say, too.
    """

    def __init__(self, store: ParkingStore, name: str) -> None:
        self.name = name
        self.error: str | None = None
        self.noted: dict[str, str] = {}
        self._store = store
        self._lanes: dict[str, dict[int, ParkedEvent]] = {}  # by version
        self._count = 0
        self._changing = anyio.Lock()
        self._recorded = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ParkedEvent]:
        """Yields what is parked; of an aggregate in its order."""
        for parked in list(self._lanes.values()):
            yield from (parked[version] for version in sorted(parked))

    def first(self, aggregate_id: str) -> ParkedEvent | None:
        parked = self._lanes.get(aggregate_id)
        return parked[min(parked)] if parked else None

    async def park_behind(self, event: Event) -> bool:
        """Parks the event if an earlier one of its aggregate is parked; returns whether it was or is.

        Raises:
            DomainRefused: too many are parked.
        """
        if event.aggregate_id not in self._lanes:
            return False
        async with self._changing:
            parked = self._lanes.get(event.aggregate_id)
            if not parked:
                return False
            if event.version not in parked:
                if event.version < min(parked):
                    return False
                await self._park(event, f"waits for version {min(parked)}", 0)
            return True

    async def park(self, event: Event, why: str, attempts: int) -> None:
        """Parks an event, durably once the store says so.

        Raises:
            DomainRefused: too many are parked.
        """
        async with self._changing:
            await self._park(event, why, attempts)

    async def _park(self, event: Event, why: str, attempts: int) -> None:
        if len(self) >= PARKED_MAX:
            raise DomainRefused(
                f"{self.name} has {PARKED_MAX:,} events parked, the limit; mend the reason, then "
                f"`eventstore reactions retry {self.name}`, or skip them",
                name=self.name,
            )
        why, version, aggregate_id = why[:WHY_CHARACTERS_MAX], event.version, event.aggregate_id
        fields = {"sequence": event.sequence, "type": event.type, "why": why, "attempts": attempts}
        done = await self._record(aggregate_id, version, PARKED, fields)
        when = int(time.time() * 1e6)
        self._add(ParkedEvent(aggregate_id, version, event.sequence, event.type, why, attempts, when, done.sequence))

    async def unpark(self, parked: ParkedEvent, how: str, who: str, why: str) -> None:
        """Takes an event off, as "done" or "skipped"."""
        async with self._changing:
            fields = {"how": how, "who": who, "why": why, **self.noted}
            await self._record(parked.aggregate_id, parked.version, UNPARKED, fields)
            self._remove(parked.aggregate_id, parked.version)
            if not self:
                self.error = None

    async def settle(
        self,
        aggregate_id: str | None,
        handle: HandleParked,
        who: str,
        why: str,
        turn: Callable[[], AbstractAsyncContextManager[object]],
        *,
        skip: bool = False,
    ) -> int:
        """Has what is parked, of an aggregate or of each, handled in order until one fails again; returns how many are done.

        With `skip` the first one is taken off without being handled. `turn`: entered for each event.
        """
        done = 0
        for each in [*self._lanes] if aggregate_id is None else [aggregate_id]:
            skips = skip
            while await self._settle_first(each, handle, who, why, turn, skip=skips):
                skips, done = False, done + 1
        return done

    async def _settle_first(
        self,
        aggregate_id: str,
        handle: HandleParked,
        who: str,
        why: str,
        turn: Callable[[], AbstractAsyncContextManager[object]],
        *,
        skip: bool,
    ) -> bool:
        async with turn():
            first = self.first(aggregate_id)
            if first is None or not (skip or await handle(first)):
                return False
            await self.unpark(first, "skipped" if skip else "done", who, why)
            return True

    async def event(self, parked: ParkedEvent) -> Event:
        """Returns a parked event as it is stored. Raises InvalidArgument if the store does not have it."""
        async for event in self._store.read(parked.aggregate_id, parked.version, parked.version):
            return event
        raise InvalidArgument(
            f"the store has no event {parked.version} of {shown(parked.aggregate_id)}; skip it",
            field="version",
            value=parked.version,
        )

    async def _record(self, aggregate_id: str, version: int, type_: str, fields: dict[str, Any]) -> Committed:
        reserved = reserved_id(aggregate_id)
        if carried_by(reserved) != aggregate_id:
            fields["aggregate_id"] = aggregate_id
        self._recorded = True
        event = NewEvent(type_, {"reaction": self.name, "version": version, **fields})
        return await self._store.append_reserved(reserved, event)

    async def wait_until_durable(self) -> None:
        """Waits until all records are durable."""
        if self._recorded:
            await all_durable(self._store)
            self._recorded = False

    def _add(self, parked: ParkedEvent) -> None:
        of_lane = self._lanes.setdefault(parked.aggregate_id, {})
        self._count += parked.version not in of_lane
        of_lane[parked.version] = parked

    def _remove(self, aggregate_id: str, version: int) -> ParkedEvent | None:
        parked = self._lanes.get(aggregate_id, {})
        removed = parked.pop(version, None)
        self._count -= removed is not None
        if not parked:
            self._lanes.pop(aggregate_id, None)
        return removed

    def _clear(self) -> None:
        self._lanes.clear()
        self._count = 0


class Parking:
    """What followers of a log have parked, each by its name. `passed_over`: how many records were not of their form when they
    were read last.
    """

    def __init__(self, store: ParkingStore, publication: str | None = None) -> None:
        """`publication`: what is parked is that of one, `topic:NAME`; None: that of reactions."""
        self._store = store
        self._publication = publication
        self._by_name: dict[str, ParkedEvents] = {}
        self.passed_over = 0

    def of(self, name: str) -> ParkedEvents:
        """Returns what a follower has parked."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = ParkedEvents(self._store, name)
        return found

    async def load(self, after: int, on_unparked: OnUnparked | None = None) -> None:
        """Reads the records after this sequence."""
        for each in self._by_name.values():
            each._clear()
        passed_over, first = 0, ""
        async for record in self._store.read_all(after, types=[PARKED, UNPARKED], aggregate_prefix=PREFIX):
            try:
                self._apply(record, on_unparked)
            except InvalidArgument as error:
                passed_over += 1
                first = first or f"{record.type} at sequence {record.sequence} on {record.aggregate_id!a}: {error.message}"
        if passed_over > self.passed_over:
            _log.warning("ignores %s of parked events; the first, %s", counted(passed_over, "malformed record"), first)
        self.passed_over = passed_over

    def _apply(self, record: Event, on_unparked: OnUnparked | None) -> None:
        """Raises InvalidArgument: it is not of the form of such records."""
        found = parking_record(record.aggregate_id, record.type, record.data)
        if found.publication != self._publication:
            return
        name, aggregate_id, version, fields = found.reaction, found.aggregate_id, found.version, found.fields
        if record.type == UNPARKED:
            removed = self.of(name)._remove(aggregate_id, version)
            if removed is not None and on_unparked is not None:
                on_unparked(removed, fields)
            return
        why = encodable(fields["why"])[:WHY_CHARACTERS_MAX]
        sequence, type_, attempts = (fields[name] for name in ("sequence", "type", "attempts"))
        when, number = record.timestamp, record.sequence
        self.of(name)._add(ParkedEvent(aggregate_id, version, sequence, type_, why, attempts, when, number))

    def recorded_after(self, sequence: int) -> int:
        """Returns a sequence, at most this one, after which all that is parked was recorded."""
        return min([sequence, *(each.record - 1 for parked in self._by_name.values() for each in parked)])
