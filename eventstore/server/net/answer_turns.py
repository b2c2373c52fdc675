"""Turns of the answers that are made by tasks, after the turn that took their requests.

Each connection has tasks of its own for them, all of which the event loop would run before it serves a socket again. So those
whose last answer took long begin one after the other, and while others are served, for half of the time at most. As in the run
queue, peers are served in rotation, and so are the connections of a peer. What waits for a thread or a disk holds up none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from eventstore.server.net.connection import Connection
from eventstore.server.net.run_queue import TURN_S, RunQueue

_SHARE: Final = 0.5
_LONG_S: Final = 0.0001


class AnswerTurns:
    """Shared by all that answer later. `queue`: knows when others were served."""

    def __init__(self, queue: RunQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._first = trio.Lock()
        self._of_peers: dict[str, trio.Lock] = {}
        self._taken_s = self._taken_at = 0.0

    async def wait(self, connection: Connection) -> None:
        """Returns when it is the connection's turn; at once for one whose last answer was quick."""
        if not connection.answers_slowly:
            return
        peer = connection.peer
        of_peer = self._of_peers.setdefault(peer, trio.Lock())
        try:
            async with of_peer, self._first:
                over = self._left() - TURN_S
                if over > 0 and self._queue.serves_others(trio.current_time()):
                    await trio.sleep(over / _SHARE)
        finally:
            if not of_peer.locked() and self._of_peers.get(peer) is of_peer:
                del self._of_peers[peer]

    def took(self, connection: Connection, seconds: float) -> None:
        """Notes how long an answer took of the event loop and of threads that compute."""
        connection.answers_slowly = seconds > _LONG_S
        if connection.answers_slowly:
            self._taken_s = self._left() + seconds

    def _left(self) -> float:
        """Returns what was taken, less what the share allows since."""
        now = self._clock()
        self._taken_s = max(0.0, self._taken_s - (now - self._taken_at) * _SHARE)
        self._taken_at = now
        return self._taken_s
