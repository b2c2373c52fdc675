"""Counts the handshakes of TLS that fail, at whatever listener, and logs them at most once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

NOT_ENDED: Final = "it was begun and not ended"
"""Why a handshake failed whose client went away."""
_QUIET_S: Final = 60.0
_log = logging.getLogger(__name__)


class FailedHandshakes:
    """Called on any thread. `count`: all; `last`: the last one, whose client and reason are escaped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._due = float("-inf")
        self._unsaid = self.count = 0
        self.last: str | None = None

    def note(self, client: str, why: str) -> None:
        """Counts one. `client`: its address."""
        with self._lock:
            self.count += 1
            self.last = ascii(f"{client}: {why}")[1:-1][:200]
            now = self._clock()
            unsaid, said = self._unsaid, now >= self._due
            self._unsaid = 0 if said else unsaid + 1
            if said:
                self._due = now + _QUIET_S
        if said:
            more = f", and {unsaid} more since the last line" if unsaid else ""
            _log.warning("a handshake of TLS failed (%s)%s", self.last, more)
