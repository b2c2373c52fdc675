"""Pages of the log, made on a thread, one at a time.

Making a page computes for some milliseconds and holds Python's lock, so that the event loop has to wait for it again and again.
Many readers of everything would take nearly all of its time. So they take turns; and after each page nothing is read for a
while if anybody else waits for an answer. Peers are served in rotation, and of the connections of a peer the one that took the
least lately: a subscription that follows does not wait behind the pages of a hundred readers of everything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.fair_turns import FairTurns

_PACED_S_MIN: Final = 0.002
_PAUSE: Final = 2  # times what the page took
T = TypeVar("T")


class _Turn:
    __slots__ = ("begins", "connection")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.begins = trio.Event()


class PacedScans:
    """Shared by all that read the log."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._taken = False
        self._waiting: dict[str, list[_Turn]] = {}
        self._thread = trio.CapacityLimiter(1)
        self._scanning: Counter[ServerConnection] = Counter()

    async def run(self, connection: ServerConnection, page: Callable[[], T]) -> T:
        """Returns what `page` returns on a thread. What it computes is charged to the connection."""
        self._scanning[connection] += 1
        try:
            await self._wait_for_turn(connection)
            try:
                found, took = await trio.to_thread.run_sync(timed, page, limiter=self._thread)
                if took > _PACED_S_MIN and self._turns.others_wait(self._scanning):
                    await trio.sleep(_PAUSE * took)
            finally:
                self._pass_on()
        finally:
            self._scanning[connection] -= 1
            if not self._scanning[connection]:
                del self._scanning[connection]
        self._turns.charge(connection, took)
        return found

    async def _wait_for_turn(self, connection: ServerConnection) -> None:
        if not self._taken:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._taken = True
            return
        turn = _Turn(connection)
        self._waiting.setdefault(connection.peer, []).append(turn)
        try:
            await turn.begins.wait()
        except BaseException:
            if turn.begins.is_set():  # between its cancellation and this line
                self._pass_on()
            else:
                self._remove(connection.peer, turn)
            raise

    def _pass_on(self) -> None:
        """Ends a turn; the next one begins."""
        if not self._waiting:
            self._taken = False
            return
        peer, turns = next(iter(self._waiting.items()))
        turn = min(turns, key=lambda each: self._turns.took_lately(each.connection))
        self._remove(peer, turn)
        if self._waiting.pop(peer, None):
            self._waiting[peer] = turns  # after the other peers
        turn.begins.set()

    def _remove(self, peer: str, turn: _Turn) -> None:
        self._waiting[peer].remove(turn)
        if not self._waiting[peer]:
            del self._waiting[peer]


def timed(page: Callable[[], T]) -> tuple[T, float]:
    """Returns what `page` returns, and how long the thread computed."""
    started = time.thread_time()
    return page(), time.thread_time() - started
