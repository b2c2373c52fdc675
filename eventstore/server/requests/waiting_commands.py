"""The bytes of commands (SEND) that are not answered yet, because their handlers or restores take time.

Over its bound a connection is not read any further, until enough of its commands are settled. Over the bound of all connections
together a SEND is refused: waiting would not help, as it may be other connections that hold the room.
"""

from __future__ import annotations

from typing import Final, Protocol

from eventstore.errors import Overloaded
from eventstore.metrics import Metric, gauge
from eventstore.server.net.connection import HELD_BY_COMMANDS, ServerConnection
from eventstore.server.net.gate import Gate


class Waiting(Protocol):
    """A SEND; `size`: what is counted of it, 0 if nothing is."""

    connection: ServerConnection
    size: int


class WaitingCommands:
    """Counts requests as a whole, from their acceptance to the outcome of their last command. One of them may exceed
    `connection_bytes_max`."""

    def __init__(self, gate: Gate, connection_bytes_max: int, bytes_max: int) -> None:
        self._gate = gate
        self._connection_bytes_max = connection_bytes_max
        self._bytes_max = bytes_max
        self.bytes = 0

    def add(self, request: Waiting, size: int) -> None:
        """Counts a request.

        Raises:
            Overloaded: there is no room for it; nothing is counted.
        """
        if self.bytes + size > self._bytes_max:
            raise Overloaded(
                f"commands that wait for their handlers take {self.bytes} bytes, the limit is {self._bytes_max} "
                "(mailbox_waiting_bytes_max); send it again later",
                limit=self._bytes_max,
                value=self.bytes + size,
            )
        connection, request.size = request.connection, size
        self.bytes += size
        connection.waiting_bytes += size
        if connection.waiting_bytes >= self._connection_bytes_max:
            self._gate.hold(connection, HELD_BY_COMMANDS)

    def remove(self, request: Waiting) -> None:
        """Stops counting a request; does nothing the second time."""
        connection, size, request.size = request.connection, request.size, 0
        self.bytes -= size
        connection.waiting_bytes -= size
        if connection.held & HELD_BY_COMMANDS and connection.waiting_bytes < self._connection_bytes_max:
            self._gate.hold(connection, HELD_BY_COMMANDS, False)


WAITING_METRICS: Final[tuple[Metric[WaitingCommands], ...]] = (
    gauge(
        "commands_waiting_bytes",
        "bytes of commands that are not answered yet",
        lambda waiting: waiting.bytes,
        "it is near `mailbox_waiting_bytes_max`: handlers do not keep up",
    ),
)
