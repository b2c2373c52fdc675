"""The connection to a shard: opened without waiting for it, wherever the map says that it is, and only to the known shard."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final, Protocol, Self

from eventstore.client.address import Addresses
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.limit import shortened
from eventstore.client.patience import OTHERS_S
from eventstore.client.routing.table import RoutingTable

_GLANCE_S: Final = 0.05  # how often a connection that waits looks whether the map has changed


class BlockingFollowed(Protocol):
    """A router, which tells its `followers` that the table has changed."""

    entry: BlockingConnection
    table: RoutingTable
    followers: list[Any]

    def watch(self) -> None: ...

    def survey(self) -> None: ...


class BlockingShardConnection(BlockingConnection):
    """As `BlockingConnection`; the first call connects, and each attempt to connect looks at the newest map."""

    _leads_to_several = True

    def __init__(self, number: int, router: BlockingFollowed, entry: BlockingConnection) -> None:
        address = router.table.address_of(number) or entry.address
        super().__init__(Addresses([address]), entry.options)
        self._number, self._whose = number, f"shard {number}: "
        self._router = router
        self._served = router.table.known.shard(number)
        self._moved = False
        self._unusable = None
        router.followers.append(self)

    def __enter__(self) -> Self:
        """Does not connect: no process may serve the shard now, which a call waits for."""
        return self

    def close(self) -> None:
        """As `BlockingConnection.close`."""
        with suppress(ValueError):
            self._router.followers.remove(self)
        super().close()

    def map_changed(self) -> None:
        """Leaves a process that does not lead the shard any longer, so that the thread that waits for it connects to the one
        that does. For any thread.
        """
        before, self._served = self._served, self._router.table.known.shard(self._number)
        if (before.leader, before.epoch) == (self._served.leader, self._served.epoch):
            return
        self._moved = True
        if self.address != self._router.table.address_of(self._number):
            self._link.wake()

    @property
    def _has_others(self) -> bool:
        return True  # who may know where the shard is by now

    def _look(self) -> None:
        if self.address != self._router.table.address_of(self._number):  # it has moved while this began to wait
            self._link.wake()
        if self._router.entry.addresses.are_several and self._session.may_last:
            self._router.entry.relied_on_until = time.monotonic() + 3 * self._patience.look_s
        super()._look()

    @property
    def _idle_ping_s(self) -> None:
        """The map says when the shard is led elsewhere: while that is heard of, nothing is asked soon that costs each shard."""
        return

    def _ask_others(self) -> None:
        self._router.survey()

    def _try_again(self, delay_s: float) -> None:
        self._router.watch()  # in a child process, nothing does yet
        if self._backoff.lost_for_s(time.monotonic()) >= OTHERS_S:
            self._ask_others()
        until = time.monotonic() + shortened(delay_s)
        while not self._moved and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _GLANCE_S))
        if self._moved:
            self._moved = False
            self._backoff.renew()
        try:
            found = self._router.table.served(self._number)
        except OSError as error:
            self._attempts = []
            self._failed(error)
        else:
            self.addresses = Addresses([found])
            self._connect([found])

    def _check_welcome(self) -> None:
        assert self.welcome is not None
        self._router.table.check_server(self._number, self.address, self.welcome)
