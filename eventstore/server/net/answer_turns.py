"""Turns of the answers that are made by tasks, after the turn that took their requests.

Each connection has tasks of its own for them, all of which the event loop would run before it serves a socket again. So those
of a peer whose last answer took long begin one after the other. While others are served they have a third of the time at most,
of which such peers have equal shares. What waits for a thread or a disk holds up none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from eventstore.server.net.connection import Connection
from eventstore.server.net.run_queue import SLICE_S, TURN_S, RunQueue

_SHARE: Final = 1 / 3
_LONG_S: Final = SLICE_S


class _Peer:
    """`left_s`: what its answers took until `at`, less what its share allowed since. `last_s`: what the last one took."""

    __slots__ = ("at", "first", "last_s", "left_s")

    def __init__(self, at: float) -> None:
        self.first = trio.Lock()
        self.left_s, self.at, self.last_s = 0.0, at, 0.0


class AnswerTurns:
    """Shared by all that answer later. `queue`: knows when others were served."""

    def __init__(self, queue: RunQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._peers: dict[str, _Peer] = {}
        self._waiting = 0

    async def wait(self, connection: Connection) -> None:
        """Returns when it is the connection's turn; at once for one whose last answer was quick."""
        peer = self._peers.get(connection.peer)
        if peer is None or connection.slow_answer_s == 0.0:
            return
        async with peer.first:
            over = self._left(peer) - TURN_S
            if over > 0 and self._queue.serves_others(trio.current_time()):
                self._waiting += 1
                try:
                    await trio.sleep(over / self._share())
                finally:
                    self._waiting -= 1
            if connection.slow_answer_s is None:  # its first one
                connection.slow_answer_s = peer.last_s
            peer.left_s = self._left(peer) + connection.slow_answer_s  # about; the next one does not begin meanwhile

    def took(self, connection: Connection, seconds: float) -> None:
        """Notes how long an answer took of the event loop and of threads that compute."""
        expected, connection.slow_answer_s = connection.slow_answer_s or 0.0, seconds if seconds > _LONG_S else 0.0
        if expected or connection.slow_answer_s:
            peer = self._peers.setdefault(connection.peer, _Peer(self._clock()))
            peer.last_s = connection.slow_answer_s
            peer.left_s = max(0.0, self._left(peer) + seconds - expected)
            self._forget_idle()

    def _left(self, peer: _Peer) -> float:
        now = self._clock()
        peer.left_s, peer.at = max(0.0, peer.left_s - (now - peer.at) * self._share()), now
        return peer.left_s

    def _share(self) -> float:
        """Returns how much of the time a peer may take, while others wait as well."""
        return _SHARE / max(1, self._waiting)

    def _forget_idle(self) -> None:
        for name, peer in list(self._peers.items()):
            if not peer.first.locked() and not self._left(peer):
                del self._peers[name]
