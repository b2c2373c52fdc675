"""Parked events: those that a reaction or publication failed on, and later ones of the same aggregate, which wait for them.

They are records in the store, on a reserved id that carries the aggregate's: `$parked{acc-1}`. So they survive what the events
survive, and stay with their aggregate. `$Parked` adds an event, `$Unparked` takes it off and says how, by whom and why. An id
too long to be carried is named by the records themselves. A publication is `topic:NAME` in the records, which no reaction is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import anyio

from eventstore.errors import Corrupt, DomainRefused
from eventstore.model import ID_BYTES_MAX, Committed, Event, NewEvent
from eventstore.records.slots import number_of_slot, slot_of

PARKED: Final = "$Parked"
UNPARKED: Final = "$Unparked"
TOPIC: Final = "topic:"
PARKED_MAX: Final = 10_000  # of one reaction: 10 MB with the longest reasons
WHY_CHARACTERS_MAX: Final = 300
_PREFIX: Final = "$parked{"


class RecordStore(Protocol):
    """The part of a store that keeps the records."""

    def read_all(self, after: int = 0, types: Any = None) -> AsyncIterator[Event]: ...

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


class Lane(NamedTuple):
    reaction: str
    aggregate_id: str


OnUnparked: TypeAlias = Callable[[Parked, Mapping[str, Any]], None]
"""Called with what was taken off, and the fields of the record that says so."""


class ParkedEvents:
    """What is parked, in memory and in the store. Belongs to one event loop."""

    def __init__(self, store: RecordStore, publication: str | None = None) -> None:
        """`publication`: what is parked is that of one, `topic:NAME`; None: that of reactions."""
        self._store = store
        self._publication = publication
        self._lanes: dict[Lane, dict[int, Parked]] = {}  # by version
        self._counts: dict[str, int] = {}
        self._changing = anyio.Lock()

    async def load(self, after: int, on_unparked: OnUnparked | None = None) -> None:
        """Reads the records after this sequence."""
        self._lanes.clear()
        self._counts.clear()
        async for record in self._store.read_all(after, types=[PARKED, UNPARKED]):
            self._apply(record, on_unparked)

    def _apply(self, record: Event, on_unparked: OnUnparked | None) -> None:
        fields = record.json()
        try:
            if (fields["reaction"] if fields["reaction"].startswith(TOPIC) else None) != self._publication:
                return
            aggregate_id = fields.get("aggregate_id") or aggregate_of(record.aggregate_id)
            lane, version = Lane(fields["reaction"], aggregate_id), int(fields["version"])
            if record.type == UNPARKED:
                removed = self._remove(lane, version)
                if removed is not None and on_unparked is not None:
                    on_unparked(removed, fields)
            else:
                sequence, attempts, type_, why = (fields[name] for name in ("sequence", "attempts", "type", "why"))
                self._add(Parked(*lane, version, sequence, type_, why, attempts, record.timestamp, record.sequence))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(record.aggregate_id, record.sequence, f"a record of what is parked lacks {error}") from None

    def count(self, reaction: str) -> int:
        return self._counts.get(reaction, 0)

    def of(self, reaction: str) -> Iterator[Parked]:
        """Yields what a reaction has parked; of an aggregate in its order."""
        for lane, parked in list(self._lanes.items()):
            if lane.reaction == reaction:
                yield from (parked[version] for version in sorted(parked))

    def first(self, lane: Lane) -> Parked | None:
        parked = self._lanes.get(lane)
        return parked[min(parked)] if parked else None

    def holds(self, lane: Lane, version: int) -> bool:
        return version in self._lanes.get(lane, ())

    def oldest_record(self) -> int | None:
        """Returns the sequence of the oldest record of something that is parked."""
        return min((each.record for parked in self._lanes.values() for each in parked.values()), default=None)

    async def park_behind(self, lane: Lane, event: Event) -> bool:
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

    async def park(self, lane: Lane, event: Event, why: str, attempts: int) -> None:
        """Parks an event, durably once the store says so.

        Raises:
            DomainRefused: too many are parked.
        """
        async with self._changing:
            await self._park(lane, event, why, attempts)

    async def _park(self, lane: Lane, event: Event, why: str, attempts: int) -> None:
        if self.count(lane.reaction) >= PARKED_MAX:
            raise DomainRefused(
                f"{lane.reaction} has {PARKED_MAX:,} events parked, the limit; mend the reason, then "
                f"`eventstore reactions retry {lane.reaction}`, or skip them",
                name=lane.reaction,
            )
        why = why[:WHY_CHARACTERS_MAX]
        fields = {
            "reaction": lane.reaction, "version": event.version, "sequence": event.sequence, "type": event.type, "why": why,
            "attempts": attempts,
        }  # fmt: skip
        done = await self._record(lane, PARKED, fields)
        self._add(
            Parked(*lane, event.version, event.sequence, event.type, why, attempts, int(time.time() * 1e6), done.sequence)
        )

    async def unpark(self, parked: Parked, how: str, who: str, why: str, **more: str) -> None:
        """Takes an event off, as "done" or "skipped". `more`: fields that the record gets, too."""
        async with self._changing:
            lane = Lane(parked.reaction, parked.aggregate_id)
            fields = {"reaction": lane.reaction, "version": parked.version, "how": how, "who": who, "why": why, **more}
            await self._record(lane, UNPARKED, fields)
            self._remove(lane, parked.version)

    async def _record(self, lane: Lane, type_: str, fields: dict[str, Any]) -> Committed:
        reserved = reserved_id(lane.aggregate_id)
        if aggregate_of(reserved) != lane.aggregate_id:
            fields["aggregate_id"] = lane.aggregate_id
        return await self._store.append_reserved(reserved, NewEvent(type_, fields))

    def _add(self, parked: Parked) -> None:
        of_lane = self._lanes.setdefault(Lane(parked.reaction, parked.aggregate_id), {})
        if parked.version not in of_lane:
            self._counts[parked.reaction] = self.count(parked.reaction) + 1
        of_lane[parked.version] = parked

    def _remove(self, lane: Lane, version: int) -> Parked | None:
        parked = self._lanes.get(lane, {})
        removed = parked.pop(version, None)
        if removed is not None:
            self._counts[lane.reaction] -= 1
        if not parked:
            self._lanes.pop(lane, None)
        return removed


def reserved_id(aggregate_id: str) -> str:
    """Returns the id of the records about an aggregate; its slot in a cluster is the aggregate's.

    It carries the aggregate's id, or in place of one that is too long a number of the same slot, as a tag, and a hash.
    """
    carried = f"{_PREFIX}{aggregate_id}}}"
    if len(carried.encode()) <= ID_BYTES_MAX:
        return carried
    digest = hashlib.blake2b(aggregate_id.encode(), digest_size=16).hexdigest()
    return f"{_PREFIX}{{{number_of_slot(slot_of(aggregate_id))}}}{digest}}}"


def aggregate_of(reserved: str) -> str:
    """Returns what a reserved id carries: the text from the first `{` to the last `}`."""
    return reserved[reserved.index("{") + 1 : reserved.rindex("}")]
