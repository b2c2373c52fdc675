"""How a store is opened and closed: it connects, and finds out whether there is one server or a cluster."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from eventstore.client.address import parse_addresses
from eventstore.client.aio.cancellation import is_cancellation
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.one_way import NetworkOneWay
from eventstore.client.aio.routing import Router, open_router
from eventstore.client.options import ClientOptions
from eventstore.client.routing.table import is_entry
from eventstore.client.session.one_way_queue import tell
from eventstore.errors import MessagesFailed


class NetworkOpened:
    """A store as a context. `_router`: None at a single server."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self._connection = NetworkConnection(parse_addresses(address), options)
        self._router: Router | None = None
        self._timeout = options.timeout
        self._one_way = NetworkOneWay(self._connection)
        self._layout: int | None = None  # of the slots of a shard of `shards`

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        if is_entry(self._connection.welcome, self._connection.addresses):
            try:
                self._router = await open_router(self._connection)
            except BaseException:
                await self.aclose()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tell(await self._ended(flushes=error is None or (isinstance(error, Exception) and not is_cancellation(error))), error)

    async def aclose(self) -> None:
        """Ends the connection. Callers that wait for an answer get Closed. Any task of the event loop may call it, in any order
        with other clients; a second time it does nothing. Messages that were sent with `wait=False` leave before, within the
        client's `timeout`.

        Raises:
            Closed: the store was opened in another event loop.
            MessagesFailed: some of these messages are not stored, or that is not known.
        """
        tell(await self._ended(flushes=True), None)

    async def _ended(self, *, flushes: bool) -> MessagesFailed | None:
        self._connection.check_close()
        report = None
        try:
            report = await self._one_way.close(self._timeout, flushes=flushes)
        finally:
            if self._router is not None:
                self._router.close()
            try:
                await self._connection.aclose()
            except BaseException as error:
                tell(report, error)
                raise
        return report

    @property
    def connected(self) -> bool:
        """Whether there is a connection now, in a cluster also to each shard that a call waits for, as calls do without one."""
        return self._connection.welcome is not None and (self._router is None or self._router.connected)
