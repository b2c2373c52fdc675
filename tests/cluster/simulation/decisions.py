"""Events with tags, and decisions: an event that is appended unless others have come up with a tag, in its slot, after a place.

Some of what clients append anyway is given tags; of some the leader checks a condition first, by `Conditions` and `TailFile`,
on what it remembers of its log. What it refuses is appended as an event without tags. The plain model is the log itself: in
what is acknowledged, nothing that a decision forbids stands between its place and the decision, whatever led, was cut, lost at
the word of a person, or handed to another shard meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from eventstore.errors import Diverged
from eventstore.event_identity import LogPosition
from eventstore.query import Query
from eventstore.records.event_page import decode_page
from eventstore.records.raw_commit import Unless
from eventstore.records.slots import slot_of
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail
from eventstore.store.read.conditions import Conditions
from eventstore.store.read.scan import ScanPage
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.disk import IN_A_CHUNK, RECORD_BYTES, Record
from tests.cluster.simulation.event_bytes import tagged

if TYPE_CHECKING:
    from tests.cluster.simulation.process import Process

_AGGREGATES: Final = ("a-{one}", "b-{one}", "c-{two}")
_TAGS: Final = ("t:1", "t:2")
_PLACES: Final = 6


class Fact(NamedTuple):
    """What a record with tags says."""

    aggregate: str
    tags: tuple[str, ...]


class Place(NamedTuple):
    """Where a client has read to: so many records of a log, and the last of them."""

    after: int
    last: Record | None


class Decisions:
    """The tags and conditions of one history, of all its shards. Its choices are its own: they change nothing else in it.

    Attributes:
        facts: by the number of the record.
        decided: of the decisions that were appended, the place and the tag that were in the condition, by number.
        refused: how many were refused; `diverged`: of these, because their place is of another history.
        checked: how many decisions were found in acknowledged logs.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"decisions {seed}")
        self._places: list[Place] = []
        self.facts: dict[int, Fact] = {}
        self.decided: dict[int, tuple[Place, str]] = {}
        self.refused = self.diverged = self.checked = 0

    def read(self, process: Process) -> None:
        """A client reads to the end of the log of a leader, which may answer, and remembers the place."""
        if self._random.random() < 0.2:
            visible = process.visible
            self._places.append(Place(len(visible), visible[-1] if visible else None))
            if len(self._places) > _PLACES:
                del self._places[self._random.randrange(len(self._places))]

    def append(self, process: Process, records: Sequence[Record]) -> None:
        """A leader is about to append these records: some get tags, of which some are decisions."""
        for record in records:
            number = record[1]
            event = process.world.family.aggregates.events.get(number)
            aggregate = self._random.choice(_AGGREGATES) if event is None else event.aggregate
            tags = tuple(sorted(self._random.sample(_TAGS, self._random.choice((0, 1, 1, 2)))))
            if tags and self._places and self._random.random() < 0.5:
                place, tag = self._random.choice(self._places), tags[0]
                if self._is_refused(process, aggregate, place, tag):
                    tags = ()
                else:
                    self.decided[number] = place, tag
            self.facts[number] = Fact(aggregate, tags)
            process.memory.add(record)

    def _is_refused(self, process: Process, aggregate: str, place: Place, tag: str) -> bool:
        """Whether the leader refuses a decision, for a reason that is there."""
        records = process.memory.records
        same = place.after <= len(records) and (place.last is None or records[place.after - 1] == place.last)
        try:
            found = process.memory.first_event(aggregate, place, tag)
        except Diverged as error:
            if same:
                raise Broken(f"{process.run} refuses a decision whose place is there: {error}") from error
            self.refused, self.diverged = self.refused + 1, self.diverged + 1
            return True
        if found is None:
            return False
        if found <= place.after or not self._forbids(records[found - 1], aggregate, tag):
            raise Broken(f"{process.run} refuses a decision after {place.after} for event {found}, which has not tag {tag}")
        self.refused += 1
        return True

    def _forbids(self, record: Record, aggregate: str, tag: str) -> bool:
        fact = self.facts.get(record[1])
        return fact is not None and tag in fact.tags and slot_of(fact.aggregate) == slot_of(aggregate)

    def acknowledged(self, who: str, known: Sequence[Record], first: int) -> None:
        """Records of a log are acknowledged, or read, from index `first` on: each decision must be true in it."""
        for at in range(first, len(known)):
            number = known[at][1]
            if number not in self.decided:
                continue
            (after, last), tag = self.decided[number]
            if last is not None and (after > at or known[after - 1] != last):
                raise Broken(f"{who}: a decision at {at} was made on {after} events of another history (T3)")
            aggregate = self.facts[number].aggregate
            between = next((place for place in range(after, at) if self._forbids(known[place], aggregate, tag)), None)
            if between is not None:
                raise Broken(f"{who}: a decision at {at} knew {after} events, and event {between} has its tag {tag} (T1)")
            self.checked += 1


class LogMemory:
    """What a leader remembers of its log, as a store does: the tags of what is not sorted, and no more of the rest than a
    scanner finds.

    Attributes:
        records: those of the log that the memory knows.
    """

    def __init__(self, decisions: Decisions, records: Sequence[Record]) -> None:
        self.records: list[Record] = []
        self._facts = decisions.facts
        self._tail = UnsortedTail()
        self._conditions = Conditions(self._tail, cast(Any, self), self._record)
        self.recover(records)

    def recover(self, records: Sequence[Record]) -> None:
        """Takes what is in the files at a start."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        at = len(self.records)
        if at % IN_A_CHUNK == 0:
            self._tail.begin(at // IN_A_CHUNK + 1, at + 1)
        file = self._tail.current
        self.records.append(record)
        if (fact := self._facts.get(record[1])) is not None:
            file.add_tags(len(file.offsets), fact.tags)
        file.add_places(RECORD_BYTES * len(file.offsets), [RECORD_BYTES], [at + 1], 1)

    def release(self, through: int) -> None:
        """Forgets the files up to this one: they are sorted."""
        for file in self._tail.files[:-1]:
            if file.number <= through:
                self._tail.drop(file)

    def first_event(self, aggregate: str, place: Place, tag: str) -> int | None:
        """Returns the sequence of the first event that a decision forbids. Raises Diverged."""
        unless = Unless(Query(tags=[tag]), self._position(place), aggregate)
        found = self._conditions.first_event(unless, len(self.records))
        return None if found is None else found.sequence

    def page(self, after: int, wanted: object, *_: object, visible: int = 0, whole: bool = False) -> ScanPage:
        """See `LogScanner.page`: returns the next event, whether it is wanted or not."""
        records = self._bytes(self.records[after], after + 1) if after < len(self.records) else b""
        return ScanPage(records, after + 1, after + 1 >= len(self.records))

    def _record(self, file: TailFile, ordinal: int) -> bytes:
        sequence = file.sequences[ordinal]
        return self._bytes(self.records[sequence - 1], sequence)

    def _bytes(self, record: Record, sequence: int) -> bytes:
        fact = self._facts.get(record[1], Fact("-", ()))
        return tagged(record, sequence, *fact)

    def _position(self, place: Place) -> LogPosition:
        if place.last is None:
            return LogPosition(0)
        return LogPosition.at(decode_page(self._bytes(place.last, place.after))[0])
