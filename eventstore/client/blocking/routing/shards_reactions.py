# Generated from eventstore/client/aio/routing/shards_reactions.py by `make generate`: do not edit.
"""The reactions of several shards, as one: each shard has all of them, for its own events.

The shards are asked one after the other; where a change fails on one, repeat the call. A sequence means something on its shard
only: what takes one is for the reactions of that shard, `store.shards[number].reactions`, unless there is only one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventstore.client.blocking.limited import limited
from eventstore.client.blocking.reactions import BlockingReactions
from eventstore.client.blocking.routing.router import BlockingRouter
from eventstore.client.connection_errors import timed_out_after
from eventstore.client.routing.looking import Looking
from eventstore.client.session.reaction_info import ParkedEvent, ParkedHandled, ReactionInfo
from eventstore.errors import Elsewhere, InvalidArgument, TimedOut
from eventstore.protocol.reaction_requests import PARKED_ROWS_MAX


class BlockingShardsReactions(BlockingReactions):
    """As `BlockingReactions`, on all shards."""

    def __init__(self, router: BlockingRouter) -> None:
        self._router = router

    @property
    def _by_shard(self) -> dict[int, BlockingReactions]:
        return {number: BlockingReactions(shard) for number, shard in self._router.connections().items()}

    @limited
    def progress(self, *, timeout: float | None = None) -> list[ReactionInfo]:
        """As `BlockingReactions.progress`, of each shard."""
        shards = self._by_shard
        found = [(number, each.progress()) for number, each in shards.items()]
        if len(shards) == 1:
            return found[0][1]
        return [reaction._replace(shard=number) for number, reactions in found for reaction in reactions]

    @limited
    def parked(self, reaction: str, skip: int = 0, *, timeout: float | None = None) -> list[ParkedEvent]:
        """As `BlockingReactions.parked`, shard by shard."""
        shards, found = self._by_shard, list[ParkedEvent]()
        for number, each in shards.items():
            page = each.parked(reaction, skip)
            skip = 0 if page or not skip else max(0, skip - _count(each, reaction))
            found += page if len(shards) == 1 else [event._replace(shard=number) for event in page]
            if len(found) >= PARKED_ROWS_MAX:
                break
        return found[:PARKED_ROWS_MAX]

    @limited
    def retry(
        self, reaction: str, aggregate_id: str | None = None, *, who: str, why: str, timeout: float | None = None
    ) -> ParkedHandled:
        """As `BlockingReactions.retry`; of one aggregate at the shard that owns it."""
        if aggregate_id is not None:
            return self._of_owner(aggregate_id, reaction, lambda own: own.retry(reaction, aggregate_id, who=who, why=why))
        handled = self._change_all(lambda each: each.retry(reaction, who=who, why=why))
        return ParkedHandled(sum(each.done for each in handled), sum(each.left for each in handled))

    @limited
    def skip(self, reaction: str, aggregate_id: str, *, who: str, why: str, timeout: float | None = None) -> ParkedHandled:
        """As `BlockingReactions.skip`, at the shard that owns the aggregate."""
        return self._of_owner(aggregate_id, reaction, lambda own: own.skip(reaction, aggregate_id, who=who, why=why))

    @limited
    def replay(self, reaction: str, sequence: int, *, who: str, why: str, timeout: float | None = None) -> int:
        """As `BlockingReactions.replay`; of several shards to the first event of each."""
        shards = self._by_shard
        if sequence != 1 and len(shards) > 1:
            raise InvalidArgument(
                f"sequence {sequence} is about one shard, and this cluster has {len(shards)}, each with its own: call "
                f"`store.shards[N].reactions.replay` with N from 0 to {len(shards) - 1}, or give 1, the first event of each",
                field="sequence",
                value=sequence,
            )
        begins: list[int] = self._change_all(lambda each: each.replay(reaction, sequence, who=who, why=why))
        return max(begins)

    def _change_all(self, change: Callable[[BlockingReactions], Any]) -> list[Any]:
        """Makes a change on each shard. Returns what they answered."""
        made: list[Any] = []
        for each in self._by_shard.values():
            try:
                made.append(change(each))
            except TimedOut as over:
                raise timed_out_after(over, changed=bool(made)) from None
        return made

    def _of_owner(self, aggregate_id: str, reaction: str, change: Callable[[BlockingReactions], Any]) -> ParkedHandled:
        """Returns what a change did, and how many events the reaction has parked on all shards after it."""
        backoff = Looking(self._router)
        while True:
            owner = self._router.table.shard_of(aggregate_id)
            try:
                done, left = change(self._by_shard[owner])
                break
            except Elsewhere as error:  # it was split, and has changed nothing
                self._router.look_again(backoff, error)
        try:
            others = [_count(each, reaction) for number, each in self._by_shard.items() if number != owner]
        except TimedOut as over:
            raise timed_out_after(over, changed=True) from None
        return ParkedHandled(done, left + sum(others))


def _count(shard: BlockingReactions, reaction: str) -> int:
    """Returns how many events a shard's reaction has parked."""
    return sum([each.parked for each in shard.progress() if each.name == reaction])
