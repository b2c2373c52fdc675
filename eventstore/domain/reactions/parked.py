"""Parked events: those that a reaction or publication failed on, and later ones of the same aggregate, which wait for them.

They are records in the store, on a reserved id that carries the aggregate's (see `records.parking_record`). So they survive
what the events survive, and stay with their aggregate. `$Parked` adds an event, `$Unparked` takes it off and says how, by whom
and why. A record that is not of its form is passed over: events cannot be removed, and it must not stop what reads them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import anyio

from eventstore.errors import DomainRefused, InvalidArgument
from eventstore.fields import counted, encodable
from eventstore.model import Committed, Event, NewEvent
from eventstore.records.parking_record import PARKED, PREFIX, UNPARKED, carried_by, parking_record, reserved_id

PARKED_MAX: Final = 10_000  # of one reaction: 10 MB with the longest reasons
WHY_CHARACTERS_MAX: Final = 300
_log = logging.getLogger(__name__)


class RecordStore(Protocol):
    """The part of a store that keeps the records."""

    def read_all(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> AsyncIterator[Event]: ...

    async def append_reserved(self, aggregate_id: str, event: NewEvent) -> Committed: ...


@dataclass(frozen=True, slots=True)
class Parked:
    """An event that is parked. `record`: the sequence of the record that says so; `when`: its time."""

    reaction: str
    aggregate_id: str
    version: int
    sequence: int
    type: str
    why: str
    attempts: int
    when: int
    record: int


class ReactionLane(NamedTuple):
    reaction: str
    aggregate_id: str


OnUnparked: TypeAlias = Callable[[Parked, Mapping[str, Any]], None]
"""Called with what was taken off, and the fields of the record that says so."""


class ParkedEvents:
    """What is parked, in memory and in the store. Belongs to one event loop. `passed_over`: how many records were not of their
    form when they were read last.
    """

    def __init__(self, store: RecordStore, publication: str | None = None) -> None:
        """`publication`: what is parked is that of one, `topic:NAME`; None: that of reactions."""
        self._store = store
        self._publication = publication
        self._lanes: dict[ReactionLane, dict[int, Parked]] = {}  # by version
        self._counts: dict[str, int] = {}
        self._changing = anyio.Lock()
        self.passed_over = 0

    async def load(self, after: int, on_unparked: OnUnparked | None = None) -> None:
        """Reads the records after this sequence."""
        self._lanes.clear()
        self._counts.clear()
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
        lane, fields = ReactionLane(found.reaction, found.aggregate_id), found.fields
        if record.type == UNPARKED:
            removed = self._remove(lane, found.version)
            if removed is not None and on_unparked is not None:
                on_unparked(removed, fields)
        else:
            why = encodable(fields["why"])[:WHY_CHARACTERS_MAX]
            sequence, type_, attempts = (fields[name] for name in ("sequence", "type", "attempts"))
            self._add(Parked(*lane, found.version, sequence, type_, why, attempts, record.timestamp, record.sequence))

    def count(self, reaction: str) -> int:
        return self._counts.get(reaction, 0)

    def of(self, reaction: str) -> Iterator[Parked]:
        """Yields what a reaction has parked; of an aggregate in its order."""
        for lane, parked in list(self._lanes.items()):
            if lane.reaction == reaction:
                yield from (parked[version] for version in sorted(parked))

    def first(self, lane: ReactionLane) -> Parked | None:
        parked = self._lanes.get(lane)
        return parked[min(parked)] if parked else None

    def holds(self, lane: ReactionLane, version: int) -> bool:
        return version in self._lanes.get(lane, ())

    def oldest_record(self) -> int | None:
        """Returns the sequence of the oldest record of something that is parked."""
        return min((each.record for parked in self._lanes.values() for each in parked.values()), default=None)

    async def park_behind(self, lane: ReactionLane, event: Event) -> bool:
        """Parks the event if an earlier one of its aggregate is parked; returns whether it was or is."""
        if lane not in self._lanes:
            return False
        async with self._changing:
            parked = self._lanes.get(lane)
            if not parked:
                return False
            if event.version not in parked:
                if event.version < min(parked):
                    return False
                await self._park(lane, event, f"waits for version {min(parked)}", 0)
            return True

    async def park(self, lane: ReactionLane, event: Event, why: str, attempts: int) -> None:
        """Parks an event, durably once the store says so.

        Raises:
            DomainRefused: too many are parked.
        """
        async with self._changing:
            await self._park(lane, event, why, attempts)

    async def _park(self, lane: ReactionLane, event: Event, why: str, attempts: int) -> None:
        if self.count(lane.reaction) >= PARKED_MAX:
            raise DomainRefused(
                f"{lane.reaction} has {PARKED_MAX:,} events parked, the limit; mend the reason, then "
                f"`eventstore reactions retry {lane.reaction}`, or skip them",
                name=lane.reaction,
            )
        why = why[:WHY_CHARACTERS_MAX]
        fields = {
            "reaction": lane.reaction,
            "version": event.version,
            "sequence": event.sequence,
            "type": event.type,
            "why": why,
            "attempts": attempts,
        }
        done = await self._record(lane, PARKED, fields)
        self._add(
            Parked(*lane, event.version, event.sequence, event.type, why, attempts, int(time.time() * 1e6), done.sequence)
        )

    async def unpark(self, parked: Parked, how: str, who: str, why: str, **more: str) -> None:
        """Takes an event off, as "done" or "skipped". `more`: fields that the record gets, too."""
        async with self._changing:
            lane = ReactionLane(parked.reaction, parked.aggregate_id)
            fields = {"reaction": lane.reaction, "version": parked.version, "how": how, "who": who, "why": why, **more}
            await self._record(lane, UNPARKED, fields)
            self._remove(lane, parked.version)

    async def _record(self, lane: ReactionLane, type_: str, fields: dict[str, Any]) -> Committed:
        reserved = reserved_id(lane.aggregate_id)
        if carried_by(reserved) != lane.aggregate_id:
            fields["aggregate_id"] = lane.aggregate_id
        return await self._store.append_reserved(reserved, NewEvent(type_, fields))

    def _add(self, parked: Parked) -> None:
        of_lane = self._lanes.setdefault(ReactionLane(parked.reaction, parked.aggregate_id), {})
        if parked.version not in of_lane:
            self._counts[parked.reaction] = self.count(parked.reaction) + 1
        of_lane[parked.version] = parked

    def _remove(self, lane: ReactionLane, version: int) -> Parked | None:
        parked = self._lanes.get(lane, {})
        removed = parked.pop(version, None)
        if removed is not None:
            self._counts[lane.reaction] -= 1
        if not parked:
            self._lanes.pop(lane, None)
        return removed
