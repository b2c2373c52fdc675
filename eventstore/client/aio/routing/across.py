"""Asks all shards, one after the other, and makes one answer of theirs, as the declaration of a request says.

Where a change fails on one, repeat the call. A shard is asked for the map after a change: it does not answer one of topics
while it is being split, so that names the new shards that may lack it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.connection_errors import timed_out_after
from eventstore.errors import EventStoreError, InvalidArgument, TimedOut
from eventstore.protocol.across import Across
from eventstore.protocol.request_declaration import DECLARATIONS, Answered
from eventstore.protocol.requests import Map

if TYPE_CHECKING:
    from eventstore.client.aio.routing.router import Router

A = TypeVar("A")


async def ask_across(router: Router, request: Answered[A], resend: bool | None) -> A:
    """Returns the answer of all shards together.

    Raises:
        InvalidArgument: it is about one shard, and there are several.
    """
    declared = DECLARATIONS[type(request)]
    assert declared.across is not None, f"{declared.name} is not declared for several shards"
    if (about_one := declared.across.about_one(request)) is not None:
        check_one(router, *about_one)
    return cast(
        A, await ask_each(router, declared.across, lambda shard: shard.call(request, resend=resend), declared.needs.changes)
    )


async def ask_each(
    router: Router, across: Across, ask: Callable[[NetworkConnection], Awaitable[Any]], changes: bool = False
) -> Any:
    """Asks each shard, and those that are split off meanwhile if that `changes` something. Returns the merged answer."""
    found: dict[int, Any] = {}
    lacked: dict[int, EventStoreError] = {}
    while missing := {number: each for number, each in router.connections().items() if number not in found | lacked}:
        for number, shard in missing.items():
            try:
                try:
                    found[number] = await ask(shard)
                except across.lacking as error:
                    lacked[number] = error
                if changes:
                    router.learn(await shard.call(Map()))
            except TimedOut as over:
                if changes:
                    raise timed_out_after(over, changed=bool(found)) from None
                raise
            if number in found and across.enough(found[number]):
                return found[number]
        if not changes:
            break
    if not found:
        raise next(iter(lacked.values()))
    return across.merge(found) if len(found) + len(lacked) > 1 else next(iter(found.values()))


def check_one(router: Router, what: str, method: str) -> None:
    """Raises InvalidArgument if there are several shards. `what` is about one; `method` of that shard's broker takes it."""
    if router.has_several:
        shards = len(router.connections())
        raise InvalidArgument(
            f"{what} is about one shard, and this cluster has {shards}, each with its own queues, offsets and dead letters: "
            f"call `store.shards[N].broker.{method}` with N from 0 to {shards - 1}, or connect to a shard "
            "(`eventstore cluster status` shows their addresses)",
            field="shard",
        )
