"""What clients asked for and were told, for the judge."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from eventstore.model import Event
from eventstore.position import Position
from eventstore.records.slots import slot_of
from tests.cluster.nemesis.linearizability import Operation

_LATEST: Final = 10_000


class Seen(NamedTuple):
    """An event as a reader got it. `shard`: its owner at that time; one that is split off since has it at the same sequence."""

    shard: int
    sequence: int
    aggregate_id: str
    version: int
    command_id: str


class Delivered(NamedTuple):
    """A message as a consumer got it."""

    shard: int
    queue: int
    offset: int
    body: str


class Progress(NamedTuple):
    """How far the group was, as a leader of a shard said. `link`: which connection to a leader it was; `queues`: for each queue
    the group's offset and the queue's end. The generation is 0 until a member has joined at that leader.
    """

    shard: int
    link: int
    generation: int
    queues: dict[int, tuple[int, int]]


OPENED_WITH: Final = 1_000
"""The balance with which each account of a bank begins."""


@dataclass
class Joint:
    """A commit that a teller asked for, under one command id as often as it took. `names`: the aggregates that it writes.
    `tag`: of its events, if it is to hold only unless an event with this tag has come up after `after`; None: ever.

    `outcome`: what it was told; None: nothing yet.
    """

    names: tuple[str, ...]
    tag: str = ""
    after: Position | None = None
    outcome: bool | None = None

    def stored(self) -> None:
        self.outcome = True

    def refused(self) -> None:
        """It was told that something else was there first. What was stored before is not forgotten."""
        self.outcome = self.outcome or False


class Statement(NamedTuple):
    """All accounts of a bank at one position. `cents`: their sum; `counts`: the events of each; `last`: the command of the last
    of them. `is_newest`: as of now, not as of an earlier statement.
    """

    accounts: tuple[str, ...]
    position: Position
    began: float
    ended: float
    cents: int
    counts: tuple[int, ...]
    last: tuple[str, ...]
    is_newest: bool = True


@dataclass
class Records:
    """`owners`: the shard of each slot, now.

    `history`: by aggregate. `acknowledged`: when an append was, and on which shard. `readers`: what each saw, over all its
    connections. `sent`: bodies of messages by whether they were acknowledged. `delivered`: what the consumers got, in the order
    in which they got it. `progress`: of their group, in the order in which it was asked for. `joint`: by command. `statements`:
    of the banks.
    """

    owners: Sequence[int]
    history: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    readers: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[str, bool] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    joint: dict[str, Joint] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def consumed(self) -> set[str]:
        """The bodies that were delivered."""
        return {each.body for each in self.delivered}

    def shard_of(self, aggregate_id: str) -> int:
        return self.owners[slot_of(aggregate_id)]

    def serving_since(self, time: float) -> bool:
        """Whether every shard has acknowledged an append that was answered later."""
        late = {shard for at, shard in self.acknowledged[-_LATEST:] if at > time}
        return late >= set(self.owners)

    def seen(self, event: Event) -> Seen:
        return Seen(
            self.shard_of(event.aggregate_id), event.sequence, event.aggregate_id, event.version, event.command_id
        )  # fmt: skip
