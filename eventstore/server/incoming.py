"""What has arrived and cannot be taken up yet, bounded over all connections together.

One connection may have a frame of 17 MiB on its way, and so may each of thousands: together more than a machine has. Past
`bytes_max` the connection whose frame has been on its way the longest is told `Overloaded` and closed, until the rest fits:
a client that sends at all has its frame through long before it is the oldest, and one that was closed sends it again.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from eventstore.errors import Overloaded
from eventstore.protocol import encode_error
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate

_LOOK_SECONDS: Final = 0.01  # adding up thousands of frames takes long enough not to be done every turn
_log = logging.getLogger(__name__)


class Incoming:
    """Looks at what is held of all connections, once in a while; between two looks they may go beyond the bound."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._looked = 0.0
        self._gate: Gate | None = None

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def end_turn(self) -> None:
        """Something was received."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self.hold_down()

    def hold_down(self) -> None:
        """Closes connections until what is held is within the bound."""
        gate = self._gate
        assert gate is not None
        held = {connection: size for connection in gate.holding if (size := connection.held_bytes)}
        total = sum(held.values())
        if total <= self._bytes_max:
            return
        for connection in sorted(held, key=_since):
            self._turn_away(gate, connection, held[connection], total)
            total -= held[connection]
            if total <= self._bytes_max:
                return

    def _turn_away(self, gate: Gate, connection: Connection, size: int, total: int) -> None:
        limit = self._bytes_max
        _log.warning(
            "closing a connection (%s): all together hold %d bytes of unfinished requests, the limit is %d; %d are its own",
            connection.name or "no hello", total, limit, size,
        )  # fmt: skip
        error = Overloaded(f"unfinished requests take {total} bytes, the limit is {limit}; send it again", limit=limit)
        gate.send(connection, encode_error(0, error))
        gate.flush()
        gate.drop(connection)


def _since(connection: Connection) -> float:
    """Since when what it holds has been on its way."""
    return connection.heard if connection.frame_since is None else connection.frame_since
