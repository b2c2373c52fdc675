"""The aggregates that clients append to while shards are split: each has a slot, and continues in the shard that owns it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.records.cluster_map import SlotRange
from eventstore.records.slots import SLOTS, slot_of
from eventstore.server.requests.owned_slots import OwnedSlots
from tests.cluster.simulation.checks import Broken

if TYPE_CHECKING:
    from tests.cluster.simulation.disk import Record

_COUNT: Final = 24


def _spread() -> Iterator[str]:
    """Yields ids, the first in each of as many even ranges of slots: other parts of a split have other aggregates."""
    for place in range(_COUNT):
        yield next(name for number in count() if slot_of(name := f"a-{number}") * _COUNT // SLOTS == place)


IDS: Final = list(_spread())
_SLOT_OF: Final = {each: slot_of(each) for each in IDS}


class Event(NamedTuple):
    """What a record of the log stands for. `command`: which one it was made for."""

    aggregate: str
    version: int
    command: int


def owned(slots: Iterable[SlotRange]) -> list[str]:
    """Returns the aggregates in these slots."""
    ranges = list(slots)
    return [each for each, slot in _SLOT_OF.items() if any(low <= slot <= high for low, high in ranges)]


class LedStore:
    """What a leader knows of its log. `slots`: those of which it takes appends, and answers reads."""

    def __init__(self, slots: Iterable[SlotRange], records: Iterable[Record], events: dict[int, Event]) -> None:
        self.slots = OwnedSlots(list(slots), lambda: 1)
        self._versions: dict[str, int] = defaultdict(int)
        self._commands: set[tuple[str, int]] = set()
        for _, number in records:
            if (event := events.get(number)) is not None:
                self._add(event)

    @property
    def owned(self) -> list[str]:
        refused = self.slots.refusals(IDS)
        return [each for place, each in enumerate(IDS) if place not in refused]

    def append(self, aggregate: str, command: int) -> Event | None:
        """Returns the event; None if the command has one, or another shard owns the aggregate."""
        if (aggregate, command) in self._commands or self.slots.refusals([aggregate]):
            return None
        event = Event(aggregate, self._versions[aggregate] + 1, command)
        self._add(event)
        return event

    def _add(self, event: Event) -> None:
        self._versions[event.aggregate] = event.version
        self._commands.add((event.aggregate, event.command))


class Aggregates:
    """`events`: by the number of their record, whether they are acknowledged or not."""

    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        self._known: dict[str, list[Event]] = defaultdict(list)
        self._commands: set[tuple[str, int]] = set()

    @property
    def total(self) -> int:
        return sum(map(len, self._known.values()))

    def known(self, aggregate: str) -> list[Event]:
        """Returns the events of an aggregate that are acknowledged, in order."""
        return self._known[aggregate]

    def acknowledged(self, who: str, records: Iterable[Record]) -> None:
        """Events are acknowledged, or read: each must follow the one before, whatever shard that is in."""
        for _, number in records:
            if (event := self.events.get(number)) is None:
                continue
            known = self._known[event.aggregate]
            if event.version != len(known) + 1:
                raise Broken(f"{who}: {event} is acknowledged, and the aggregate has {len(known)} events in all shards")
            if (event.aggregate, event.command) in self._commands:
                raise Broken(f"{who}: {event} is acknowledged, whose command took effect before")
            known.append(event)
            self._commands.add((event.aggregate, event.command))

    def read(self, who: str, aggregate: str, records: Iterable[Record]) -> None:
        """A leader answers a read of an aggregate by these records of its log."""
        found = [event for _, number in records if (event := self.events.get(number)) and event.aggregate == aggregate]
        known = self._known[aggregate]
        if found != known:
            raise Broken(
                f"{who}: aggregate {aggregate} is read with {len(found)} events, of which {len(known)} are acknowledged"
            )
