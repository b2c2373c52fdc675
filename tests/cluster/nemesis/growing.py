"""Has the cluster grow and shrink while it is broken: nearly always something is asked for that is not done yet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from eventstore.errors import EventStoreError
from eventstore_cluster.nodes.moving.moving import move
from eventstore_cluster.nodes.moving.plans import carry_out, end_draining, limit_moves, start_draining, survey, take_back
from eventstore_cluster.nodes.placing.balancing import drain, rebalance, resize
from eventstore_cluster.nodes.placing.fleet import Fleet
from eventstore_cluster.nodes.placing.plan import PlacementPlan
from eventstore_cluster.nodes.splitting import splitting
from tests.cluster.nemesis.polling import in_thread, until
from tests.cluster.nemesis.stage import CLUSTER, LATER, SHARDS, Stage
from tests.cluster.nemesis.timeline import Timeline

GROWTH: Final = ("move", "replicas", "drain", "rebalance", "split", "join")
_WEIGHTS: Final = {"move": 4, "replicas": 2, "drain": 1, "rebalance": 2, "split": 4, "join": 0}
_SHARDS_MAX: Final = 5
_SPLIT_EVERY_S: Final = 15.0
"""Short rounds split little: each shard has processes that take time to start, and to end."""
_TAKEN_BACK: Final = 0.25
"""Of what is asked for, so much is taken back, when it may have been done by half."""
_DONE_S: Final = 10.0
_SETTLED_S: Final = 1.0


class Growing:
    """`kinds`: of `GROWTH`; `counts`: how often each was done, whole or in part. It waits for nobody: what is broken beside it
    delays what was asked for, or has it refused.
    """

    def __init__(self, stage: Stage, timeline: Timeline, seed: int, kinds: Sequence[str], counts: Counter[str]) -> None:
        self._stage, self._timeline, self._kinds, self._counts = stage, timeline, kinds, counts
        self._chance = random.Random(f"growing {seed}")
        self._options = stage.registry_options
        self._shards_max = _SHARDS_MAX

    async def run(self, seconds: float) -> None:
        """Does one thing after the other until it is cancelled. A node joins in the first half of so many seconds."""
        self._shards_max = min(_SHARDS_MAX, SHARDS + int(seconds // _SPLIT_EVERY_S))
        joins = trio.current_time() + seconds * self._chance.uniform(0.1, 0.4)
        if not self._kinds:
            return
        await self._try("limits", partial(limit_moves, self._options, CLUSTER, 2, None, unlimited=True))
        while True:
            if "join" in self._kinds and trio.current_time() >= joins and LATER not in self._stage.nodes:
                await self._join()
            kind = self._chance.choices(self._kinds, [_WEIGHTS[each] or 0.01 for each in self._kinds])[0]
            if kind != "join":
                await self._grow(kind)
            await trio.sleep(self._chance.choice((0.0, 0.5, 2.0)))

    async def _join(self) -> None:
        self._timeline.note("join", LATER)
        await in_thread(partial(self._stage.start, LATER))
        self._counts["join"] += 1

    async def _grow(self, kind: str) -> None:
        shards = await in_thread(self._stage.kept)
        busy = await in_thread(self._stage.under_way)
        shard = self._chance.choice([each for each in shards if each not in busy] or list(shards))
        asks: dict[str, Callable[[], object]] = {
            "move": partial(self._move, shard),
            "replicas": partial(self._plan, partial(resize, count=self._chance.choice((2, 3)), shards=[shard])),
            "drain": partial(self._drain, self._chance.choice(self._stage.nodes)),
            "rebalance": partial(self._plan, rebalance),
            "split": partial(splitting.split, self._options, CLUSTER, shard, self._chance.choice((2, 2, 3))),
        }
        if kind == "split" and len(shards) >= self._shards_max:
            kind = "move"
        if not await self._try(kind, asks[kind], f"shard {shard}"):
            return
        self._counts[kind] += 1
        done = False
        if self._chance.random() < _TAKEN_BACK:
            await trio.sleep(self._chance.choice((0.0, 0.3, 1.0, 3.0)))
            back = splitting.take_back if kind == "split" else take_back
            done = await self._try(f"take back {kind}", partial(back, self._options, CLUSTER, shard), f"shard {shard}")
            self._counts["take back"] += done
        else:
            done = await until(partial(in_thread, self._nothing_wanted), self._chance.choice((_SETTLED_S, _DONE_S)))
        if kind == "drain":
            await self.end_draining()
        self._timeline.note("grown" if done else "under way", f"{kind}: {await in_thread(self._stage.kept)}")

    async def end_draining(self) -> None:
        """Lets all nodes be given replicas again."""
        for name in self._stage.nodes:
            await self._try("", partial(end_draining, self._options, CLUSTER, name))

    def _nothing_wanted(self) -> bool:
        return not self._stage.under_way()

    async def _try(self, kind: str, ask: Callable[[], object], about: str = "") -> bool:
        """Returns whether it was asked for: something else may be under way, or nothing may answer."""
        try:
            found = await in_thread(ask)
        except EventStoreError as error:
            if kind:
                self._timeline.note("not asked", f"{kind} {about}: {error}"[:200])
            return False
        if kind:
            self._timeline.note(kind, f"{about}: {found}"[:300])
        return True

    def _move(self, shard: int) -> object:
        replicas = self._stage.kept()[shard]
        others = [name for name in self._stage.nodes if name not in replicas]
        return move(self._options, CLUSTER, shard, self._chance.choice(replicas), self._chance.choice(others or replicas))

    def _drain(self, name: str) -> object:
        start_draining(self._options, CLUSTER, name)
        return self._plan(partial(drain, name=name))

    def _plan(self, make: Callable[[Fleet], PlacementPlan]) -> object:
        found = survey(self._options, CLUSTER, 0.2)
        return carry_out(self._options, CLUSTER, found, make(found.fleet))
