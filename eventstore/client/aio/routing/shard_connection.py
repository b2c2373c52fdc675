"""The connection to a shard: opened without waiting for it, wherever the map says that it is, and only to the known shard."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Protocol

import anyio

from eventstore.client.address import Addresses
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.link import NetworkLink
from eventstore.client.aio.subject_keys import NetworkKeys
from eventstore.client.patience import Patience
from eventstore.client.routing.table import RoutingTable


class Followed(Protocol):
    """A router, which tells its `followers` that the table has changed."""

    entry: NetworkConnection
    table: RoutingTable
    followers: list[Any]

    @property
    def keys(self) -> NetworkKeys: ...

    def survey(self) -> None: ...


class ShardConnection(NetworkConnection):
    """As `NetworkConnection`; each attempt to connect looks at the newest map. Its tasks belong to `entry`, which closes it."""

    _leads_to_several = True

    def __init__(self, number: int, router: Followed, entry: NetworkConnection) -> None:
        address = router.table.address_of(number) or entry.address
        super().__init__(Addresses([address]), entry.options)
        self._number, self._whose = number, f"shard {number}: "
        self._router = router
        self._served = router.table.known.shard(number)
        self._attempt: anyio.CancelScope | None = None  # a connection that is being made, or waited for
        assert entry.user_tasks is not None, "the entry is open"
        self.begin(entry.user_tasks)
        router.followers.append(self)

    @property
    def keys(self) -> NetworkKeys:  # a subject may be in another shard than the events about it
        """Those of the router."""
        return self._router.keys

    def close(self) -> None:
        """As `NetworkConnection.close`."""
        with suppress(ValueError):
            self._router.followers.remove(self)
        super().close()

    def map_changed(self) -> None:
        """Leaves a process that does not lead the shard any longer, and connects at once to the one that does."""
        before, self._served = self._served, self._router.table.known.shard(self._number)
        if (before.leader, before.epoch) == (self._served.leader, self._served.epoch):
            return
        self._backoff.renew()
        if self._attempt is not None:
            self._attempt.cancel()
        if self._link is not None and self.address != self._router.table.address_of(self._number):
            self._link.drop()

    async def _reconnect(self) -> NetworkLink | None:
        link = None
        with anyio.CancelScope() as self._attempt:
            await anyio.sleep(self._backoff.delay_s())
            try:
                found = self._router.table.served(self._number)
            except OSError as error:
                self._attempts = []
                self._failed(error)
            else:
                self.addresses = Addresses([found])
                link = await self._connect([found])
        self._attempt = None
        return link

    @property
    def _has_others(self) -> bool:
        return True  # who may know where the shard is by now

    @property
    def _idle_ping_s(self) -> None:
        """The map says when the shard is led elsewhere: while that is heard of, nothing is asked soon that costs each shard."""
        return

    def _waits(self, patience: Patience, *, may_last: bool) -> None:
        super()._waits(patience, may_last=may_last)
        if may_last and self._router.entry.addresses.are_several:
            self._router.entry.relied_on_until = time.monotonic() + 3 * patience.look_s

    async def _ask_others(self) -> None:
        self._router.survey()

    def _check_welcome(self, link: NetworkLink) -> None:
        assert self.welcome is not None
        try:
            self._router.table.check_server(self._number, self.address, self.welcome)
        except BaseException:
            link.close()
            self.session.disconnected()
            raise
