"""The reactions of several shards, as one: each shard has all of them, for its own events.

The shards are asked one after the other; where a change fails on one, repeat the call. A sequence means something on its shard
only: what takes one is for the reactions of that shard, `store.shards[number].reactions`, unless there is only one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventstore.client.aio.limited import limited
from eventstore.client.aio.reactions import NetworkReactions
from eventstore.client.aio.routing.router import Router
from eventstore.client.connection_errors import timed_out_after
from eventstore.client.routing.looking import Looking
from eventstore.errors import Elsewhere, InvalidArgument, TimedOut
from eventstore.protocol.reaction_info import ParkedEvent, ParkedHandled
from eventstore.protocol.reaction_requests import PARKED_ROWS_MAX


class ShardsReactions(NetworkReactions):
    """As `NetworkReactions`, on all shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._call = router.call_across
        self._timeout = router.entry.options.timeout

    @property
    def _by_shard(self) -> dict[int, NetworkReactions]:
        return {number: NetworkReactions(shard) for number, shard in self._router.connections().items()}

    @limited
    async def parked(self, reaction: str, skip: int = 0, *, timeout: float | None = None) -> list[ParkedEvent]:
        """As `NetworkReactions.parked`, shard by shard."""
        shards, found = self._by_shard, list[ParkedEvent]()
        for number, each in shards.items():
            page = await each.parked(reaction, skip)
            skip = 0 if page or not skip else max(0, skip - await _count(each, reaction))
            found += page if len(shards) == 1 else [event._replace(shard=number) for event in page]
            if len(found) >= PARKED_ROWS_MAX:
                break
        return found[:PARKED_ROWS_MAX]

    @limited
    async def retry(
        self, reaction: str, aggregate_id: str | None = None, *, who: str, why: str, timeout: float | None = None
    ) -> ParkedHandled:
        """As `NetworkReactions.retry`; of one aggregate at the shard that owns it."""
        if aggregate_id is not None:
            return await self._of_owner(aggregate_id, reaction, lambda own: own.retry(reaction, aggregate_id, who=who, why=why))
        handled = await self._change_all(lambda each: each.retry(reaction, who=who, why=why))
        return ParkedHandled(sum(each.done for each in handled), sum(each.left for each in handled))

    @limited
    async def skip(
        self, reaction: str, aggregate_id: str, *, who: str, why: str, timeout: float | None = None
    ) -> ParkedHandled:
        """As `NetworkReactions.skip`, at the shard that owns the aggregate."""
        return await self._of_owner(aggregate_id, reaction, lambda own: own.skip(reaction, aggregate_id, who=who, why=why))

    @limited
    async def replay(self, reaction: str, sequence: int, *, who: str, why: str, timeout: float | None = None) -> int:
        """As `NetworkReactions.replay`; of several shards to the first event of each."""
        shards = self._by_shard
        if sequence != 1 and len(shards) > 1:
            raise InvalidArgument(
                f"sequence {sequence} is about one shard, and this cluster has {len(shards)}, each with its own: call "
                f"`store.shards[N].reactions.replay` with N from 0 to {len(shards) - 1}, or give 1, the first event of each",
                field="sequence",
                value=sequence,
            )
        begins: list[int] = await self._change_all(lambda each: each.replay(reaction, sequence, who=who, why=why))
        return max(begins)

    async def _change_all(self, change: Callable[[NetworkReactions], Any]) -> list[Any]:
        """Makes a change on each shard. Returns what they answered."""
        made: list[Any] = []
        for each in self._by_shard.values():
            try:
                made.append(await change(each))
            except TimedOut as over:
                raise timed_out_after(over, changed=bool(made)) from None
        return made

    async def _of_owner(self, aggregate_id: str, reaction: str, change: Callable[[NetworkReactions], Any]) -> ParkedHandled:
        """Returns what a change did, and how many events the reaction has parked on all shards after it."""
        backoff = Looking(self._router)
        while True:
            owner = self._router.table.shard_of(aggregate_id)
            try:
                done, left = await change(self._by_shard[owner])
                break
            except Elsewhere as error:  # it was split, and has changed nothing
                await self._router.look_again(backoff, error)
        try:
            others = [await _count(each, reaction) for number, each in self._by_shard.items() if number != owner]
        except TimedOut as over:
            raise timed_out_after(over, changed=True) from None
        return ParkedHandled(done, left + sum(others))


async def _count(shard: NetworkReactions, reaction: str) -> int:
    """Returns how many events a shard's reaction has parked."""
    return sum([each.parked for each in await shard.progress() if each.name == reaction])
