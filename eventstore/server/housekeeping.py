"""Closes connections whose time is over, and those that hold up others by what they do not take."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Collection

from eventstore.server.connection import Connection
from eventstore.server.gate_limits import GateLimits
from eventstore.server.outgoing import Outgoing

_log = logging.getLogger(__name__)


class Housekeeping:
    """Looks at all connections of a gate. `drop` closes one, which is then no longer among them."""

    def __init__(
        self,
        limits: GateLimits,
        connections: Collection[Connection],
        outgoing: Outgoing,
        drop: Callable[[Connection], None],
    ) -> None:
        self._limits = limits
        self._connections = connections
        self._outgoing = outgoing
        self._drop = drop

    def look(self, now: float) -> None:
        """To be called a few times a second, but not while it is the server that does not serve."""
        for connection in self._suspects(now):
            why = self._overdue(connection, now)
            if why is not None:
                _log.info("closing a connection (%s): %s", connection.name or "no hello", why)
                self._drop(connection)
        for connection in self._outgoing.in_the_way(self._connections, now):
            _log.warning(
                "closing a connection (%s): it takes none of its %d bytes, and others wait for room for theirs",
                connection.name or "no hello", connection.unsent_bytes,
            )  # fmt: skip
            self._drop(connection)

    def _suspects(self, now: float) -> list[Connection]:
        """All whose time can be over: one look at each of thousands, four times a second."""
        idle_since = now - self._limits.idle_timeout_s
        return [
            each
            for each in self._connections
            if each.frame_since is not None or each.blocked_since is not None or not each.greeted or each.heard < idle_since
        ]

    def _overdue(self, connection: Connection, now: float) -> str | None:
        limits = self._limits
        if connection.blocked_since is not None and now - connection.blocked_since > limits.slow_client_timeout_s:
            return f"it has not read its answers for {limits.slow_client_timeout_s:g} s"
        is_read = connection.watched & selectors.EVENT_READ  # else it is us who let it wait
        if is_read and connection.frame_since is not None and now - connection.frame_since > limits.frame_timeout_s:
            return f"a frame has not arrived whole for {limits.frame_timeout_s:g} s"
        if not connection.greeted and now - connection.accepted > limits.hello_timeout_s:
            return f"no hello for {limits.hello_timeout_s:g} s"
        waits_for_us = connection.owed or connection.endings or connection.pending
        if now - connection.heard > limits.idle_timeout_s and not waits_for_us:
            return f"nothing asked for {limits.idle_timeout_s:g} s"
        return None
