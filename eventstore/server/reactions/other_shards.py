"""Sends commands of a shard's reactions to the shards that own their aggregates, as any client does.

The map comes from this server's own address: its node tells it every change. The connection is opened with the first such
command, and the client is imported then, 2 MB: most domains, and every store of its own, send none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from eventstore.client.address import Address, Addresses
from eventstore.errors import Elsewhere, EventStoreError
from eventstore.model import Committed, Unchanged
from eventstore.protocol.timer_info import TimerEvent
from eventstore.protocol.timer_requests import SetTimer
from eventstore.server.access.security import Security
from eventstore.server.requests.owned_slots import OwnedSlots

if TYPE_CHECKING:
    from eventstore.client.aio.routing.router import Router

_RECONNECT_S: Final = 5.0  # then the reaction fails, says so, and is tried again
_AGAIN_S: Final = 1.0
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_log = logging.getLogger(__name__)


class OtherShards:
    """The way to the other shards of the cluster. `host`, `port`: where this shard listens. `security`: its own."""

    def __init__(self, slots: OwnedSlots, host: str, port: int, security: Security) -> None:
        self._slots = slots
        self._security = security
        self._addresses = Addresses([Address(_ANYWHERE.get(host, host), port, security.tls is not None)])
        self._router: Router | None = None
        self._wanted, self._opened = trio.Event(), trio.Event()

    def own(self, aggregate_id: str) -> bool:
        """Whether another shard owns the aggregate."""
        try:
            self._slots.check(aggregate_id)
        except Elsewhere:
            return True
        return False

    async def run(self) -> None:
        """Keeps the connections open until cancelled."""
        await self._wanted.wait()
        from eventstore.client.aio.connection import NetworkConnection
        from eventstore.client.aio.routing.router import open_router

        while True:
            try:
                options = self._security.own_options("reactions", _RECONNECT_S)
                async with NetworkConnection(self._addresses, options) as entry:
                    self._router = await open_router(entry)
                    self._opened.set()
                    try:
                        await trio.sleep_forever()
                    finally:
                        self._router.close()
            except* EventStoreError as failed:
                _log.warning("the other shards cannot be reached: %s", failed.exceptions[0])
            await trio.sleep(_AGAIN_S)

    async def set_timer(self, request: SetTimer) -> TimerEvent:
        """Has a timer set; durable on return. Raises what the other shard answers; ConnectionLost."""
        self._wanted.set()
        await self._opened.wait()
        assert self._router is not None
        return await self._router.call(request.aggregate_id, request)

    async def send(self, command: object, command_id: str, metadata: Mapping[str, object]) -> Committed | None:
        """Sends a command; its changes are durable when this returns. Raises what the other shard answers; ConnectionLost."""
        from eventstore.client.routing.queues import sends
        from eventstore.client.session.command_rows import encode_command

        row = encode_command(command, command_id, metadata)
        self._wanted.set()
        await self._opened.wait()
        assert self._router is not None
        outcome: Committed | Unchanged = await self._router.put(sends, row[1], row)
        return outcome if isinstance(outcome, Committed) else None
