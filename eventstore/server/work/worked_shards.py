"""The shards that a worker works on, over connections that follow their leaders.

Each shard that there is at the start gets a set of mailboxes, which keeps its aggregates: what a later split gives to a new
shard stays in the set of the old one, in order, and only its batches go to another shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio

from eventstore.errors import EventStoreError
from eventstore.metrics import Metric, MetricSource, gauge
from eventstore.server.feature import Feature
from eventstore.server.logs import get_logger

if TYPE_CHECKING:
    from eventstore.client.aio.store import NetworkStore

_LOOK_S: Final = 1.0


class WorkedShards:
    """`sets`: the shards that have a set of mailboxes."""

    def __init__(self, store: NetworkStore) -> None:
        self.store = store
        self._begun_with = None if store._router is None else store._router.table.known
        self.sets = [0] if self._begun_with is None else [each.shard for each in self._begun_with.shards]
        self.feature = Feature(
            metrics=[MetricSource(WORKER_METRICS, lambda: self)], attention=lambda: self.attention, run=self.watch
        )

    def owner(self, aggregate_id: str) -> int:
        """Returns the set of an aggregate."""
        return 0 if self._begun_with is None else self._begun_with.owner_of(aggregate_id)

    def across(self, aggregate_ids: Sequence[str]) -> EventStoreError | None:
        """Returns the error if these aggregates are in several shards."""
        if self.store._router is None:
            return None
        try:
            self.store._router.table.check_one_shard(aggregate_ids)
        except EventStoreError as error:
            return error
        return None

    @property
    def stores(self) -> Mapping[int, NetworkStore]:
        """The stores of all shards that there are now, by number; a store that is not of several shards is its only one."""
        return self.store._of_shards() or {0: self.store}

    @property
    def has_several(self) -> bool:
        return len(self.stores) > 1

    @property
    def away(self) -> list[int]:
        """The shards that are not reached."""
        return [number for number, store in self.stores.items() if not store.connected]

    @property
    def attention(self) -> str | None:
        """Says that the store is away, or which shards are, and which ones wait with them."""
        away = self.away
        if not away:
            return None
        if not self.has_several:
            return "the store is away: commands wait"
        also = self._sharing(away)
        more = f", and those of {_named(also)}: mailboxes are shared until the worker is started again" if also else ""
        return f"{_named(away)} {'are' if len(away) > 1 else 'is'} away: commands to their aggregates wait{more}"

    def _sharing(self, away: Sequence[int]) -> list[int]:
        """Returns the other shards whose aggregates are in a set with some of these shards, by a split since the start."""
        router, begun_with = self.store._router, self._begun_with
        if router is None or begun_with is None:
            return []
        sets = {each.shard: begun_with.owners[each.slots[0][0]] for each in router.table.known.shards}
        held_up = {sets[each] for each in away if each in sets}
        return [shard for shard, own in sets.items() if own in held_up and shard not in away]

    async def watch(self) -> None:
        """Has the log say when a shard is away, and when it is reached again; until cancelled."""
        log = get_logger("eventstore.worker")
        away: set[int] = set()
        while True:
            await trio.sleep(_LOOK_S)
            for number, store in self.stores.items() if self.has_several else ():
                if store.connected and number in away:
                    away.remove(number)
                    log.info("a shard is reached again", shard=number)
                elif not store.connected and number not in away:
                    away.add(number)
                    log.warning("a shard is away: commands to its aggregates wait", shard=number)


WORKER_METRICS: Final[tuple[Metric[WorkedShards], ...]] = (
    gauge(
        "shards_away",
        "shards that a worker does not reach; 1: its only store",
        lambda shards: len(shards.away),
        "it is not 0: commands to their aggregates wait",
    ),
)


def _named(shards: Sequence[int]) -> str:
    return f"{'shards' if len(shards) > 1 else 'shard'} {', '.join(map(str, shards))}"


def least_of(durabilities: Sequence[Callable[[], int | None]]) -> Callable[[], int | None]:
    """Returns what gives the least of them, since commits of several shards are answered together. A shard that has not said
    it has answered no commit.
    """
    return lambda: min((known for each in durabilities if (known := each()) is not None), default=None)
