"""The task of a request that may be ended by another one, such as a subscription or a pull that waits.

A task begins after the turn that starts it. While one that was ended already has not begun, nothing more is taken from its
connection: thousands of requests, each ended by the next one, would all have tasks, which no bound counts.
"""

from __future__ import annotations

from typing import Final

import trio

from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

HELD_BY_ENDED: Final = 32


class RequestTask:
    """`scope`: what the task does is in it."""

    __slots__ = ("_begun", "_connection", "_gate", "scope")

    def __init__(self, gate: Gate, connection: ServerConnection) -> None:
        self._gate = gate
        self._connection = connection
        self._begun = False
        self.scope = trio.CancelScope()

    def begin(self) -> trio.CancelScope:
        """Returns the scope, for the task to enter."""
        self._begun = True
        if self._connection.held & HELD_BY_ENDED:
            self._gate.hold(self._connection, HELD_BY_ENDED, False)
            self._gate.flush()
        return self.scope

    def cancel(self) -> None:
        """Ends what the task does."""
        self.scope.cancel()
        if not self._begun and not self._connection.closed:
            self._gate.hold(self._connection, HELD_BY_ENDED)
