"""The store that is published, and where events are that it published before a split and hands out no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy

from eventstore.client.aio.routing.router import Router, open_router
from eventstore.client.aio.store import NetworkStore
from eventstore.records.splits import Split, sharing


class Kin:
    """A store: a single one, a cluster, or one shard of a cluster, which has the map of it. `router`: that of the cluster."""

    def __init__(self, store: NetworkStore, shard: int | None, router: Router | None) -> None:
        self.store = store
        self.router = router
        self._shard = shard

    @property
    def splits(self) -> tuple[Split, ...]:
        """Those of the cluster, as far as they are known now."""
        return () if self.router is None else self.router.table.known.splits

    def shards(self) -> dict[int | None, NetworkStore]:
        """Returns what is published, by shard; None: the only one. A shard has the layout that is known now."""
        if self._shard is None or self.router is None:
            return dict(self.store._of_shards().items()) or {None: self.store}
        own = copy(self.store)
        own._layout = self.router.table.known.layouts()[self._shard]
        return {None: own}

    def of(self, shard: int | None, sequence: int) -> list[NetworkStore]:
        """Returns the other shards whose logs have the same event at this sequence. `shard`: one of `shards`."""
        own = self._shard if shard is None else shard
        if self.router is None or own is None:
            return []
        cluster = copy(self.store)
        cluster._router = self.router
        stores, others = cluster._of_shards(), sharing(self.splits, own, sequence) - {own}
        return [stores[each] for each in sorted(others) if each in stores]


@asynccontextmanager
async def kin_of(store: NetworkStore) -> AsyncIterator[Kin]:
    """Opens the way to the other shards, if the address of `store` is that of a shard."""
    welcome = store._connection.welcome
    if store._router is not None or welcome is None or welcome.cluster is None or welcome.shard is None:
        yield Kin(store, None, store._router)
        return
    router = await open_router(store._connection)
    try:
        yield Kin(store, welcome.shard, router)
    finally:
        router.close()
