"""The connection to a shard: opened without waiting for it, wherever the map says that it is, and only to the known cluster."""

from __future__ import annotations

from typing import Protocol

import anyio

from eventstore.client.aio.connection import Connection
from eventstore.client.aio.link import Link
from eventstore.client.routing.table import Table, check_cluster


class HasTable(Protocol):
    """A router, which keeps its table up to date."""

    table: Table


class ShardConnection(Connection):
    """As `Connection`; each attempt to connect looks at the newest map. Its tasks belong to `entry`, which closes it."""

    def __init__(self, number: int, router: HasTable, entry: Connection) -> None:
        super().__init__(router.table.address_of(number) or entry.address, entry.options)
        self._number = number
        self._router = router
        self._unusable = None
        scope = self._scope = anyio.CancelScope(shield=True)
        assert entry.user_tasks is not None, "the entry is open"
        entry.user_tasks.start_soon(self._run, None, scope)

    async def _connect(self) -> Link:
        self.address = self._router.table.served(self._number)
        return await super()._connect()

    async def _greet(self, link: Link) -> None:
        await super()._greet(link)
        assert self.welcome is not None
        check_cluster(self._router.table.known.cluster, self.welcome.cluster)
