"""Timeouts: closes connections that are silent, slow or stuck, and those whose unread answers block others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

import trio

from eventstore.server.net.budgets import Backlog, OutboundBudget
from eventstore.server.net.connection import GateLimits, ServerConnection
from eventstore.timing.shared_ticks import sleep_to_tick

_PAUSE_S: Final = 0.25
_IDLE_PAUSE_S: Final = 1.0
_log = logging.getLogger(__name__)


class Timeouts:
    """Checks all connections of a gate. `drop` closes one and removes it from `connections`."""

    def __init__(
        self,
        limits: GateLimits,
        connections: Collection[ServerConnection],
        outbound: OutboundBudget,
        drop: Callable[[ServerConnection], None],
    ) -> None:
        self._limits = limits
        self._connections = connections
        self._outbound = outbound
        self._drop = drop
        self._stalled = False

    async def run(self, then: Callable[[], None]) -> None:
        """Checks a few times a second until cancelled, and calls `then` each time."""
        while True:
            await sleep_to_tick(self._pause_s)
            if not self._stalled:
                await self._check(trio.current_time())
            then()

    async def stall(self, backlog: Backlog) -> None:
        """Waits for the disk, and restarts the clients' timeouts: the server did not serve them meanwhile."""
        self._stalled = True
        try:
            await backlog.wait_for_room()
        finally:
            self._stalled = False
        for connection in self._connections:
            connection.restart_all_timeouts(trio.current_time())

    @property
    def _pause_s(self) -> float:
        return _PAUSE_S if self._connections else _IDLE_PAUSE_S

    async def _check(self, now: float) -> None:
        """Closes overdue connections, one after the other: each may have many requests that end with it."""
        for connection in self._suspects(now):
            why = None if connection.closed else self._overdue(connection, now)
            if why is not None:
                _log.info("closing a connection (%s): %s", connection.name or "no hello", why)
                self._drop(connection)
                await trio.lowlevel.checkpoint()
                if self._stalled:
                    return
        for connection in self._outbound.blocking(self._connections, now):
            _log.warning(
                "closing a connection (%s): it reads none of its %d unsent bytes, and other answers wait for that room",
                connection.name or "no hello",
                connection.unsent_bytes,
            )
            self._drop(connection)

    def _suspects(self, now: float) -> list[ServerConnection]:
        """Returns the connections that may be overdue, by one cheap test each: there are thousands, four times a second."""
        idle_since = now - self._limits.idle_timeout_s
        return [
            each
            for each in self._connections
            if each.frame_since is not None or each.blocked_since is not None or not each.greeted or each.heard < idle_since
        ]

    def _overdue(self, connection: ServerConnection, now: float) -> str | None:
        limits = self._limits
        if connection.blocked_since is not None and now - connection.blocked_since > limits.slow_client_timeout_s:
            return f"it has not read its answers for {limits.slow_client_timeout_s:g} s"
        is_read = connection.is_read  # otherwise the server makes it wait
        if is_read and connection.frame_since is not None and now - connection.frame_since > limits.frame_timeout_s:
            return f"a frame has been incomplete for {limits.frame_timeout_s:g} s"
        if not connection.greeted and now - connection.accepted > limits.hello_timeout_s:
            return f"no hello for {limits.hello_timeout_s:g} s"
        waits_for_server = connection.owed or connection.bound or connection.pending
        if now - connection.heard > limits.idle_timeout_s and not waits_for_server:
            return f"no request for {limits.idle_timeout_s:g} s"
        return None
