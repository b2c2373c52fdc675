"""The events that a publication has parked, because no message could be made of them or of an earlier one of their aggregate.

They are recorded as those of reactions are. Publishing may resume before events that are no longer parked: those that were
sent to this same topic, or skipped, since its last other message. The records say so, and they are passed over. A topic that
was created again gets all events, and what is parked stays parked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from eventstore.domain.reactions.parked import Parked, ParkedEvents, ReactionLane, RecordStore
from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.following.log import EventSubscription
from eventstore.model import Event
from eventstore.position import END, After
from eventstore.records.event_message import Origin
from eventstore.records.parking_record import TOPIC

_IDENTITY: Final = "topic"  # the field of a record: which topic of this name


class ParkingStore(RecordStore, Protocol):
    """The part of a store that has the records, and the events that are parked."""

    def read(self, aggregate_id: str, from_version: int = 1, to_version: int | None = None) -> AsyncIterator[Event]: ...

    def subscribe(self, after: After = 0) -> EventSubscription: ...


class ParkedMessages:
    """What the publication to a topic has parked. `name`: by which operators know it. `error`: why the last one was."""

    def __init__(self, store: ParkingStore, topic: str) -> None:
        self.name = TOPIC + topic
        self.error: str | None = None
        self._store = store
        self._events = ParkedEvents(store, self.name)
        self._settled = set[tuple[str, int]]()
        self._identity = ""
        self._recorded = False

    async def begin(self, identity: str, place: int, after: int, arrived: Iterable[Origin]) -> None:
        """Reads the records after the sequence `after`. Publishing resumes after `place` to the topic of this identity, at the
        end of which are the messages of the parked events `arrived`.
        """
        self._identity, self._settled = identity, set()

        def settle(parked: Parked, fields: Mapping[str, Any]) -> None:
            if parked.sequence > place and fields.get(_IDENTITY) == identity:
                self._settled.add((parked.aggregate_id, parked.version))

        await self._events.load(after, settle)
        for origin in sorted(arrived, key=lambda each: each.sequence):
            first = self.first(origin.aggregate_id)
            if first is not None and first.version == origin.version:
                await self.release(first, "done", "eventstore", "its message was in the topic")
                self._settled.add((first.aggregate_id, first.version))

    @property
    def is_quiet(self) -> bool:
        """Whether `holds` is False for all events."""
        return not self._settled and not len(self)

    @property
    def passed_over(self) -> int:
        """How many records were not of their form when they were read."""
        return self._events.passed_over

    def __len__(self) -> int:
        return self._events.count(self.name)

    def __iter__(self) -> Iterator[Parked]:
        """Yields what is parked; of an aggregate in its order."""
        return self._events.of(self.name)

    def first(self, aggregate_id: str) -> Parked | None:
        return self._events.first(ReactionLane(self.name, aggregate_id))

    def recorded_after(self, sequence: int) -> int:
        """Returns a sequence, at most this one, after which all that is parked was recorded."""
        oldest = self._events.oldest_record()
        return sequence if oldest is None else min(sequence, oldest - 1)

    async def holds(self, event: Event) -> bool:
        """Whether the event is parked, or is now behind one of its aggregate, or has been released before.

        Raises:
            DomainRefused: too many are parked.
        """
        if (event.aggregate_id, event.version) in self._settled:
            return True
        held = await self._events.park_behind(ReactionLane(self.name, event.aggregate_id), event)
        self._recorded |= held
        return held

    async def park(self, event: Event, why: str) -> None:
        """Parks an event. Raises DomainRefused if too many are parked."""
        await self._events.park(ReactionLane(self.name, event.aggregate_id), event, why, 1)
        self._recorded = True

    async def release(self, parked: Parked, how: str, who: str, why: str) -> None:
        """Takes an event off, durably, as "done" or "skipped"."""
        await self._events.unpark(parked, how, who, why, **{_IDENTITY: self._identity})
        self._recorded = True
        await self.wait_until_durable()
        if not len(self):
            self.error = None

    async def wait_until_durable(self) -> None:
        """Waits until all records are durable."""
        if self._recorded:
            async with self._store.subscribe(END) as items:  # its first item comes once everything so far is
                async for _ in items:
                    break
            self._recorded = False

    async def event(self, parked: Parked) -> Event:
        """Returns a parked event as it is stored. Raises InvalidArgument if the store does not have it."""
        async for event in self._store.read(parked.aggregate_id, parked.version, parked.version):
            return event
        raise InvalidArgument(
            f"the store has no event {parked.version} of {shown(parked.aggregate_id)}; skip it",
            field="version",
            value=parked.version,
        )
