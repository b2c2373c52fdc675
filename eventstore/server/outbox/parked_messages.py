"""The events that a publication has parked, because no message could be made of them or of an earlier one of their aggregate.

They are recorded as those of reactions are. Publishing may resume before events that are no longer parked: those that were
sent to this same topic, or skipped, since its last other message. The records say so, and they are passed over. A topic that
was created again gets all events, and what is parked stays parked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from eventstore.following.parking import ParkedEvents, Parking, ParkingStore
from eventstore.model import Event
from eventstore.protocol.reaction_info import ParkedEvent
from eventstore.records.event_message import EventOrigin
from eventstore.records.parking_record import TOPIC

_IDENTITY: Final = "topic"  # the field of a record: which topic of this name


class ParkedMessages:
    """What the publication to a topic has parked. `events`: the lanes."""

    def __init__(self, store: ParkingStore, topic: str) -> None:
        self._parking = Parking(store, TOPIC + topic)
        self.events: ParkedEvents = self._parking.of(TOPIC + topic)
        self._settled = set[tuple[str, int]]()

    async def begin(self, identity: str, place: int, after: int, arrived: Iterable[EventOrigin]) -> None:
        """Reads the records after the sequence `after`. Publishing resumes after `place` to the topic of this identity, at the
        end of which are the messages of the parked events `arrived`.
        """
        self.events.noted, self._settled = {_IDENTITY: identity}, set()

        def settle(parked: ParkedEvent, fields: Mapping[str, Any]) -> None:
            if parked.sequence > place and fields.get(_IDENTITY) == identity:
                self._settled.add((parked.aggregate_id, parked.version))

        await self._parking.load(after, settle)
        for origin in sorted(arrived, key=lambda each: each.sequence):
            first = self.events.first(origin.aggregate_id)
            if first is not None and first.version == origin.version:
                await self.events.unpark(first, "done", "eventstore", "its message was in the topic")
                await self.events.wait_until_durable()
                self._settled.add((first.aggregate_id, first.version))

    @property
    def is_quiet(self) -> bool:
        """Whether `holds` is False for all events."""
        return not self._settled and not self.events

    @property
    def passed_over(self) -> int:
        """How many records were not of their form when they were read."""
        return self._parking.passed_over

    def recorded_after(self, sequence: int) -> int:
        """Returns a sequence, at most this one, after which all that is parked was recorded."""
        return self._parking.recorded_after(sequence)

    async def holds(self, event: Event) -> bool:
        """Whether the event is parked, or is now behind one of its aggregate, or has been released before.

        Raises:
            DomainRefused: too many are parked.
        """
        return (event.aggregate_id, event.version) in self._settled or await self.events.park_behind(event)
