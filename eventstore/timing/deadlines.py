"""Many that wait for a time, and one task that waits for the first of them: each costs a place in a table, and those whose time
comes at the same moment are not all woken by the event loop at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls `end` with those whose time has come, while `run` runs."""

    def __init__(self, end: Callable[[Iterable[T]], None]) -> None:
        self._end = end
        self._times: list[float] = []  # the keys of `_waiting`; those at which no caller waits are removed from the first on
        self._waiting: dict[float, dict[T, None]] = {}
        self._sleep = trio.CancelScope()

    def add(self, time: float, waits: T) -> None:
        """Has `end` called with it at this time, unless it is discarded before."""
        if time not in self._waiting:
            self._waiting[time] = {}
            heappush(self._times, time)
            self._sleep.deadline = min(self._sleep.deadline, time)
        self._waiting[time][waits] = None

    def discard(self, time: float, waits: T) -> None:
        """Forgets one that was added with this time, if it is still there."""
        self._waiting.get(time, {}).pop(waits, None)
        while self._times and not self._waiting[self._times[0]]:
            del self._waiting[heappop(self._times)]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._sleep = trio.CancelScope(deadline=self._times[0] if self._times else inf)
            with self._sleep:
                await trio.sleep_forever()
            now = trio.current_time()
            while self._times and self._times[0] <= now:
                self._end(self._waiting.pop(heappop(self._times)))
