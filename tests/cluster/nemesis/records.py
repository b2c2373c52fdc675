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
    """An event as a reader got it."""

    shard: int
    sequence: int
    aggregate_id: str
    version: int
    command_id: str


@dataclass
class Records:
    """`owners`: the shard of each slot.

    `history`: by aggregate. `acknowledged`: when an append was, and on which shard. `readers`: what each saw, over all its
    connections. `sent`: bodies of messages by whether they were acknowledged. `consumed`: how often each was delivered.
    """

    owners: Sequence[int]
    history: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    readers: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[str, bool] = field(default_factory=dict)
    consumed: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

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
