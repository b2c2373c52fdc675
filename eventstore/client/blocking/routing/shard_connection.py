"""The connection to a shard: opened without waiting for it, wherever the map says that it is, and only to the known cluster."""

from __future__ import annotations

from typing import Protocol, Self

from eventstore.client.blocking.connection import Connection
from eventstore.client.routing.table import Table, check_cluster


class Looks(Protocol):
    """A router."""

    table: Table

    def look_for_a_new_address(self) -> None: ...


class ShardConnection(Connection):
    """As `Connection`; the first call connects, and each attempt after one that failed asks for the map."""

    def __init__(self, number: int, router: Looks, entry: Connection) -> None:
        super().__init__(router.table.address_of(number) or entry.address, entry.options)
        self._number = number
        self._router = router
        self._failed = False
        self._unusable = None

    def __enter__(self) -> Self:
        """Does not connect: the map may be older than the shard's process, and a call looks for a newer one."""
        return self

    def _connect(self) -> None:
        if self._failed:
            self._router.look_for_a_new_address()
        self._failed = True
        self.address = self._router.table.served(self._number)
        super()._connect()
        self._failed = False
        assert self.welcome is not None
        try:
            check_cluster(self._router.table.known.cluster, self.welcome.cluster)
        except BaseException:
            self._reset()
            raise
