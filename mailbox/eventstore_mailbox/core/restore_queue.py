"""Aggregates that are being restored from the store, and aggregates that wait for it: a bounded number at once, each retried
until it succeeds.
"""

from __future__ import annotations

from collections import deque

from eventstore_mailbox.core.backoff import RetryDelay
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import Driver
from eventstore_mailbox.core.state import QUEUE_TRANSITIONS, UNREACHABLE, AggregateQueue


class RestoreQueue:
    """An aggregate that waits for its retry does not count as running: failing restores must not block all others."""

    def __init__(self, options: Options, driver: Driver) -> None:
        self.done = self.failures = 0
        self._options = options
        self._driver = driver
        self._waiting: deque[AggregateQueue] = deque()
        self._backoffs: dict[AggregateQueue, RetryDelay] = {}
        self._running = self._retrying = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting) + self._retrying

    @property
    def running(self) -> int:
        return self._running

    def add(self, lane: AggregateQueue) -> None:
        self._waiting.append(lane)
        self._start_next()

    def finished(self, lane: AggregateQueue) -> None:
        """Notes that the aggregate was restored, or can never be, and starts the next restore."""
        self.done += 1
        self._backoffs.pop(lane, None)
        self._running -= 1
        self._start_next()

    def failed(self, lane: AggregateQueue) -> None:
        lane.state = QUEUE_TRANSITIONS[lane.state, UNREACHABLE]
        self.failures += 1
        self._running -= 1
        backoff = self._backoffs.setdefault(lane, RetryDelay(self._options.backoff_first_s, self._options.backoff_max_s))
        self._retrying += 1
        self._driver.call_later(backoff.next_s(), lambda: self._retry(lane))
        self._start_next()

    def _retry(self, lane: AggregateQueue) -> None:
        self._retrying -= 1
        self.add(lane)

    def _start_next(self) -> None:
        while self._waiting and self._running < self._options.restores_max:
            self._running += 1
            self._driver.restore(self._waiting.popleft())
