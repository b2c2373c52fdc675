"""A coroutine that is cancelled at a chosen point: each of those at which it waits, in turn."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any


class CancelledAt:
    """Runs a coroutine that is cancelled the n-th time it waits; `again`: and each time from then on."""

    def __init__(self, wait: int, cancel: Callable[[], object], *, again: bool = False) -> None:
        self.waits = 0
        self._wait = wait
        self._cancel = cancel
        self._again = again

    @coroutine
    def run(self, what: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        resume: Callable[[Any], Any] = what.send
        value: Any = None
        while True:
            try:
                trap = resume(value)
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self._wait or (self._again and self.waits > self._wait):
                self._cancel()
            try:
                value = yield trap
                resume = what.send
            except BaseException as error:
                resume, value = what.throw, error
