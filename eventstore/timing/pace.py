"""Bounds what a listener's answers have of the processor, which the event loop of its server needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_SHARE: Final = 0.2  # a scrape takes some milliseconds, a page of the console some tens of them
_TAKEN_S_MAX: Final = 0.05
_TAKEN_S_CAP: Final = 0.15  # half a second of waiting after the dearest page: probes of health wait for a second


class Pace:
    """What all answers together take: `_SHARE` of the time of a processor on average. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._taken_s, self._at = 0.0, clock()

    def add(self, seconds: float) -> None:
        """Adds what an answer took of the processor, since the last call or earlier."""
        with self._lock:
            self._taken_s = min(self._left(seconds), _TAKEN_S_CAP)

    def wait_s(self) -> float:
        """Returns how long no further request may be taken."""
        with self._lock:
            self._taken_s = self._left()
            return max(0.0, self._taken_s - _TAKEN_S_MAX) / _SHARE

    def _left(self, more_s: float = 0.0) -> float:
        before, self._at = self._at, self._clock()
        return max(0.0, self._taken_s + more_s - (self._at - before) * _SHARE)
