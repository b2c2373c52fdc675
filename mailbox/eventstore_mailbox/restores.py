"""Aggregates that are being restored from the store, and those that wait for it: many at once, bounded, each tried until it
works."""

from __future__ import annotations

from collections import deque

from eventstore_mailbox.backoff import Backoff
from eventstore_mailbox.driver import Driver
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.options import Options


class Restores:
    """A place is given back while its aggregate waits to be tried again: some that fail must not hold up all others."""

    def __init__(self, options: Options, driver: Driver) -> None:
        self.done = self.failures = 0
        self._options = options
        self._driver = driver
        self._waiting: deque[Lane] = deque()
        self._backoffs: dict[Lane, Backoff] = {}
        self._running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._backoffs)

    @property
    def running(self) -> int:
        return self._running

    def request(self, lane: Lane) -> None:
        self._waiting.append(lane)
        self._begin()

    def ended(self, lane: Lane) -> None:
        """With the aggregate, or for good without."""
        self.done += 1
        self._backoffs.pop(lane, None)
        self._running -= 1
        self._begin()

    def failed(self, lane: Lane) -> None:
        self.failures += 1
        self._running -= 1
        backoff = self._backoffs.setdefault(lane, Backoff(self._options.backoff_first_s, self._options.backoff_max_s))
        self._driver.later(backoff.next_s(), lambda: self.request(lane))
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._running < self._options.restores_max:
            self._running += 1
            self._driver.restore(self._waiting.popleft())
