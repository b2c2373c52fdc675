"""Turns of the answers that are made by tasks, after the turn that took their requests.

Each connection has tasks of its own for them, all of which the event loop would run before it serves a socket again. So answers
that take long begin one after the other: those of connections whose last answer did, and the first ones of all. While others
are served, such answers have a third of the time, and beside several a quarter. The peer that had the least of it is next, so
those that wait have equal shares, whether they ask all the time or wait for each answer. One whose last answer was quick does
not wait, unless some of those just turned out to take long. What waits for a thread or a disk holds up none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.run_queue import ACTIVE_S, QUICK_S_MAX, SLICE_S, TURN_S, RunQueue

_SHARE: Final = 1 / 3
_SHARE_BESIDE_SEVERAL: Final = 1 / 4
_LONG_S: Final = SLICE_S
_PAUSE_S: Final = 0.0001
_ONE_S_MAX: Final = QUICK_S_MAX / 2  # one alone, however long, does not have those wait that were quick
_PEERS_REMEMBERED: Final = 16  # more than twice as many as wait: those are forgotten that are not ahead


class _Debt:
    """Seconds that were taken, less what was allowed since."""

    __slots__ = ("_at", "_left_s")

    def __init__(self) -> None:
        self._left_s = self._at = 0.0

    def left(self, now: float, share: float) -> float:
        self._left_s, self._at = max(0.0, self._left_s - (now - self._at) * share), now
        return self._left_s

    def add(self, seconds: float) -> None:
        """Adds; also less than nothing."""
        self._left_s = max(0.0, self._left_s + seconds)


class _Turn:
    """`expected`: how long the answer that begins is expected to take."""

    __slots__ = ("begins", "connection", "expected")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.begins = trio.Event()
        self.expected = 0.0


class AnswerTurns:
    """Shared by all that answer later; `run` has those begin that wait. `queue`: knows when others were served."""

    def __init__(self, queue: RunQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._waiting: dict[str, deque[_Turn]] = {}
        self._some_wait = trio.Event()
        self._debt, self._unexpected = _Debt(), _Debt()
        self._taken: dict[str, float] = {}  # by peers that had more than the one that was next the last time
        self._least_s = 0.0  # what that one had
        self._last_s = _LONG_S

    async def wait(self, connection: ServerConnection) -> float:
        """Returns when it is the connection's turn; and how long its answer is expected to take, for `took`."""
        if connection.closed or (connection.slow_answer_s == 0.0 and self._left(self._unexpected) <= QUICK_S_MAX):
            return 0.0
        turn, peer = _Turn(connection), connection.peer
        # even if none waits: as many tasks as there are connections may come here before a socket is looked at again
        self._waiting.setdefault(peer, deque()).append(turn)
        self._some_wait.set()
        try:
            await turn.begins.wait()
        finally:
            if not turn.begins.is_set():
                self._waiting[peer].remove(turn)
                if not self._waiting[peer]:
                    del self._waiting[peer]
        return turn.expected

    def took(self, connection: ServerConnection, seconds: float, expected: float, waited: float = 0.0) -> None:
        """Notes how long an answer took of the event loop and of threads that compute; `waited`: of that, for a processor. One
        that waited was not slow, but what is slow has its share of the time that the server gets.
        """
        slow = seconds - waited > _LONG_S
        connection.slow_answer_s = seconds if slow else 0.0
        if slow:
            self._last_s = seconds
            if not expected:
                self._left(self._unexpected)
                self._unexpected.add(min(seconds, _ONE_S_MAX))
        if slow or expected:
            more = seconds - expected
            self._count(connection.peer, more)
            self._debt.add(-max(0.0, more) * self._share)  # what was allowed while it was made

    async def run(self) -> None:
        """Has one after the other begin, until cancelled."""
        while True:
            over = self._left(self._debt) - TURN_S
            if not self._waiting:
                self._some_wait = trio.Event()
                await self._some_wait.wait()
            elif over > 0:
                await trio.sleep(min(max(over / self._share, _PAUSE_S), ACTIVE_S))  # the others may have gone by then
            else:
                turn = self._next()
                self._begin(turn)
                turn.begins.set()
                await trio.lowlevel.checkpoint()  # sockets are served before the next one

    def _next(self) -> _Turn:
        peer = min(self._waiting, key=self._order)
        self._least_s = self._had(peer)
        waiting = self._waiting.pop(peer)
        turn = waiting.popleft()
        if waiting:
            self._waiting[peer] = waiting  # after those that had as much
        return turn

    def _begin(self, turn: _Turn) -> None:
        connection = turn.connection
        if not connection.closed:
            turn.expected = connection.slow_answer_s or self._last_s
            self._count(connection.peer, turn.expected)

    def _had(self, peer: str) -> float:
        return max(self._least_s, self._taken.get(peer, 0.0))

    def _order(self, peer: str) -> tuple[float, float]:
        """Of those that had as much, one is first whose answer may be quick."""
        return self._had(peer), self._waiting[peer][0].connection.slow_answer_s or 0.0

    def _count(self, peer: str, seconds: float) -> None:
        if not self._left(self._debt) and not self._waiting:
            self._taken.clear()
        self._debt.add(seconds)
        self._taken[peer] = self._had(peer) + seconds
        if len(self._taken) > 2 * len(self._waiting) + _PEERS_REMEMBERED:
            self._taken = {peer: taken for peer, taken in self._taken.items() if taken > self._least_s}

    def _left(self, debt: _Debt) -> float:
        return debt.left(self._clock(), self._share)

    @property
    def _share(self) -> float:
        """Returns how much of the time such answers may take."""
        now = trio.current_time()
        if not self._queue.serves_others(now):
            return 1.0
        return _SHARE_BESIDE_SEVERAL if self._queue.serves_several(now) else _SHARE
