"""The time of one seed, and everything random in it: steps in their order, numbers, and what is told of them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable


class Schedule:
    """`quiet`: there are no faults any more. `trace`: each step as a line, if it is `traced`."""

    def __init__(self, seed: int, *, traced: bool) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.quiet = False
        self.trace: list[str] = []
        self._traced = traced
        self._numbers = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def run_until(self, end: float, ends: Callable[[], bool]) -> None:
        """Takes steps up to this time, unless `ends` says that there is nothing more to see."""
        while self._queue and self._queue[0][0] <= end and not ends():
            self.now, _, step = heapq.heappop(self._queue)
            step()
        self.now = end

    def after(self, delay: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + max(delay, 0.0), self.number(), step))

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def token(self, prefix: str) -> str:
        return f"{prefix}{self.number()}"

    def note(self, who: str, what: object) -> None:
        if self._traced:
            self.trace.append(f"{self.now:10.4f} {who} {what}")
