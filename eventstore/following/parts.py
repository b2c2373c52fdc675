"""The parts that a log is followed in: a store, or each shard of a cluster.

A split makes new parts. The follower of a cluster is ended by it and begins again, with the parts that there are then; a part
that is new says by its `origin` where to continue. So this is all that followers have to know of splits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

import anyio

from eventstore.client.routing.merging import RETRY_S, Away
from eventstore.errors import ConnectionLost, Elsewhere
from eventstore.following.checkpoint import Origin
from eventstore.following.log import Followable
from eventstore.model import VERSION_MAX
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.splits import sharing

if TYPE_CHECKING:
    from eventstore.client.aio.routing.router import Router
    from eventstore.client.aio.store import NetworkStore

_AGAIN_S: Final = 0.1
S = TypeVar("S", bound=Followable)


@dataclass(frozen=True)
class Part(Generic[S]):
    """One log. `number`: of its shard; None: it is the only part. `uuid`: of its store; None: whatever that has. `origin`: what
    it begins with, for a follower that was never here.
    """

    number: int | None
    store: S
    uuid: str | None = None
    origin: Origin | None = None


FollowPart = Callable[[Part[S], bool, Callable[[], None]], Awaitable[None]]
"""Follows a part until it returns: (part, whether the part was away, what to call whenever something of it has arrived)."""


class Parts(Generic[S]):
    """A store that is followed, in parts if there are several."""

    def __init__(self, store: S, router: Router | None = None, shard: int | None = None) -> None:
        """`router`: the way to the other shards; None: that of `store`. `shard`: the one that `store` is, of these."""
        self.store = store
        self.router: Router | None = router or getattr(store, "_router", None)
        self._shard = shard

    def now(self) -> list[Part[S]]:
        """Returns the parts that there are now; one that begins with the events of another after that one."""
        if self.router is None:
            return [Part(None, self.store)]
        known = self.router.table.known
        if self._shard is not None:
            own: Any = copy(self.store)
            own._layout = known.layouts()[self._shard]
            return [Part(None, own)]
        stores: dict[int, Any] = self._of_shards()
        if len(stores) == 1:
            return [Part(None, *stores.values())]
        uuids = {each.shard: str(UUID(bytes=each.uuid)) for each in known.shards}
        return [Part(number, stores[number], uuids[number], origin) for number, origin in _origins(known).items()]

    def others(self, part: Part[S], sequence: int) -> list[NetworkStore]:
        """Returns the stores of other parts whose logs have the same event at this sequence: one of them hands it out."""
        own = self._shard if part.number is None else part.number
        if self.router is None or own is None:
            return []
        others = sharing(self.router.table.known.splits, own, sequence) - {own}
        stores = self._of_shards()
        return [stores[each] for each in sorted(others) if each in stores]

    def _of_shards(self) -> dict[int, NetworkStore]:
        cluster: Any = copy(self.store)
        cluster._router = self.router
        found: dict[int, NetworkStore] = cluster._of_shards()
        return found

    async def run(self, follow: Callable[[list[Part[S]]], Awaitable[None]]) -> None:
        """Calls `follow` with the parts that there are, until it returns. When there are others, it is cancelled and called
        again.
        """
        while True:
            watch = _Watch(self.router)
            try:
                with watch.scope, watch:
                    return await follow(self.now())
            except Elsewhere:  # the map that is known is not that of the shards
                await anyio.sleep(_AGAIN_S)

    async def follow(self, parts: Iterable[Part[S]], follow: FollowPart[S]) -> None:
        """Follows all parts at the same time. One that cannot be reached is waited for, and the log says so. Raises the first
        error; ConnectionLost once all that are left are away.
        """
        by_number = {each.number: each for each in parts}
        if None in by_number:
            await follow(by_number[None], False, lambda: None)
            return
        away, failed = Away(number for number in by_number if number is not None), list[Exception]()

        async def follow_part(number: int, part: Part[S]) -> None:
            was_away = False
            while True:
                try:
                    await follow(part, was_away, lambda: away.found(number))
                    away.ended(number)
                    return
                except ConnectionLost as error:
                    away.lost(number, error)
                    was_away = True
                    await anyio.sleep(RETRY_S)

        async def keep_failure(number: int, part: Part[S]) -> None:
            try:
                await follow_part(number, part)
            except Exception as error:  # raised outside the task group, which would wrap it in an ExceptionGroup
                failed.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for number, part in by_number.items():
                if number is not None:
                    tasks.start_soon(keep_failure, number, part)
        if failed:
            raise failed[0]


@asynccontextmanager
async def parts_of(store: NetworkStore) -> AsyncIterator[Parts[NetworkStore]]:
    """Opens the way to the other shards, if the address of `store` is that of a shard."""
    welcome = store._connection.welcome
    if store._router is not None or welcome is None or welcome.cluster is None or welcome.shard is None:
        yield Parts(store)
        return
    from eventstore.client.aio.routing.router import open_router

    router = await open_router(store._connection)
    try:
        yield Parts(store, router, welcome.shard)
    finally:
        router.close()


def _origins(known: ClusterMap) -> dict[int, Origin | None]:
    """Returns what each shard begins with, a parent before its children. The first shard of all has the events of before."""
    born = {split.child: Origin(split.parent, split.through) for split in known.splits}
    first = [each.shard for each in known.shards if each.shard not in born]
    whole = Origin(None, VERSION_MAX) if len(first) == 1 else None
    return {**dict.fromkeys(first, whole), **born}


class _Watch:
    """Follows a router, while it is entered: cancels `scope` when there is a newer layout than the one at its begin."""

    def __init__(self, router: Router | None) -> None:
        self.scope = anyio.CancelScope()
        self._router = router
        self._number = 0 if router is None else router.table.known.layout

    def __enter__(self) -> None:
        if self._router is not None:
            self._router.followers.append(self)

    def __exit__(self, *error: object) -> None:
        if self._router is not None:
            with suppress(ValueError):
                self._router.followers.remove(self)

    def map_changed(self) -> None:
        if self._router is not None and self._router.table.known.layout > self._number:
            self.scope.cancel()
