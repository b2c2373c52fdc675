"""The connection to a shard: opened without waiting for it, and only to a shard of the cluster that is known."""

from __future__ import annotations

from eventstore.client.address import Address
from eventstore.client.blocking.connection import Connection
from eventstore.client.routing.table import check_cluster


class ShardConnection(Connection):
    """As `Connection`; the first call connects."""

    def __init__(self, address: Address, entry: Connection, cluster: bytes | None) -> None:
        super().__init__(address, entry.options)
        self._cluster = cluster
        self._unusable = None

    def _connect(self) -> None:
        super()._connect()
        assert self.welcome is not None
        try:
            check_cluster(self._cluster, self.welcome.cluster)
        except BaseException:
            self._reset()
            raise
