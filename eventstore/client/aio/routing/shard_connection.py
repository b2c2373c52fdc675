"""The connection to a shard: opened without waiting for it, and only to a shard of the cluster that is known."""

from __future__ import annotations

import anyio

from eventstore.client.address import Address
from eventstore.client.aio.connection import Connection
from eventstore.client.aio.link import Link
from eventstore.client.routing.table import check_cluster


class ShardConnection(Connection):
    """As `Connection`. Its tasks belong to those of `entry`, which closes it."""

    def __init__(self, address: Address, entry: Connection, cluster: bytes | None) -> None:
        super().__init__(address, entry.options)
        self._cluster = cluster
        self._unusable = None
        scope = self._scope = anyio.CancelScope(shield=True)
        assert entry.user_tasks is not None, "the entry is open"
        entry.user_tasks.start_soon(self._run, None, scope)

    async def _greet(self, link: Link) -> None:
        await super()._greet(link)
        assert self.welcome is not None
        check_cluster(self._cluster, self.welcome.cluster)
