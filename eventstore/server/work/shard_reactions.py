"""The reactions of a worker on several shards: each shard's events have reactions, and a checkpoint, of their own.

Reaction `ship` of shard 1 is `ship@1` for operators. Its commands go to whichever shard owns the aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import trio

from eventstore.domain.reactions.parked import Parked
from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.server.reactions.reaction_runner import Progress, ReactionRunner


class ShardReactions:
    """As `ReactionRunner`, whose methods it has. `by_shard`: the reactions to the events of each shard."""

    def __init__(self, by_shard: Mapping[int, ReactionRunner]) -> None:
        self._by_shard = by_shard

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for each in self._by_shard.values():
                nursery.start_soon(each.run)

    @property
    def attention(self) -> str | None:
        found = ((shard, each.attention) for shard, each in self._by_shard.items())
        return next((f"shard {shard}: {said}" for shard, said in found if said is not None), None)

    def progress(self) -> list[Progress]:
        found = chain.from_iterable(each.progress() for each in self._by_shard.values())
        return sorted(found, key=lambda each: each.name)

    def parked(self, name: str) -> list[Parked]:
        runner, own = self._named(name)
        return runner.parked(own)

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int:
        runner, own = self._named(name)
        return await runner.retry(own, aggregate_id, who, why)

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int:
        runner, own = self._named(name)
        return await runner.skip(own, aggregate_id, who, why)

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int:
        runner, own = self._named(name)
        return await runner.replay(own, sequence, who, why)

    def _named(self, name: str) -> tuple[ReactionRunner, str]:
        """Returns the reactions of the shard that a name ends with, and the rest of it. Raises InvalidArgument."""
        own, _, shard = name.rpartition("@")
        for number, runner in self._by_shard.items():
            if shard == str(number):
                return runner, own
        shards, first = ", ".join(map(str, list(self._by_shard)[:20])), next(iter(self._by_shard))
        raise InvalidArgument(
            f"reaction {shown(name)} names no shard: this worker runs each reaction on shards {shards}; say which, such as "
            f"NAME@{first}",
            field="reaction", value=shown(name),
        )  # fmt: skip
