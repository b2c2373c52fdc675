"""What clients asked for and were told, for the judge."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from eventstore.model import Event
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


@dataclass
class Records:
    """`owners`: the shard of each slot, now.

    `history`: by aggregate. `acknowledged`: when an append was, and on which shard. `readers`: what each saw, over all its
    connections. `sent`: bodies of messages by whether they were acknowledged. `delivered`: what the consumers got, in the order
    in which they got it. `progress`: of their group, in the order in which it was asked for.
    """

    owners: Sequence[int]
    history: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    readers: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[str, bool] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
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
