"""Pages of the log, made on a thread, one at a time.

Making a page computes for some milliseconds and holds Python's lock, so that the event loop has to wait for it again and again.
Many readers of everything would take nearly all of its time. So they take turns; and after each page nothing is read for a
while if anybody else waits for an answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from eventstore.server.net.connection import Connection
from eventstore.server.net.fair_turns import FairTurns

_PACED_S_MIN: Final = 0.002
_PAUSE: Final = 2  # times what the page took
T = TypeVar("T")


class PacedScans:
    """Shared by all that read the log."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._scanning: Counter[Connection] = Counter()

    async def run(self, connection: Connection, page: Callable[[], T]) -> T:
        """Returns what `page` returns on a thread. What it computes is charged to the connection."""
        self._scanning[connection] += 1
        try:
            async with self._turn:
                found, took = await trio.to_thread.run_sync(timed, page, limiter=self._thread)
                if took > _PACED_S_MIN and self._turns.others_wait(self._scanning):
                    await trio.sleep(_PAUSE * took)
        finally:
            self._scanning[connection] -= 1
            if not self._scanning[connection]:
                del self._scanning[connection]
        self._turns.charge(connection, took)
        return found


def timed(page: Callable[[], T]) -> tuple[T, float]:
    """Returns what `page` returns, and how long the thread computed."""
    started = time.thread_time()
    return page(), time.thread_time() - started
