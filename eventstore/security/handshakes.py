"""Counts the handshakes of TLS that fail, at whatever listener, and logs them at most once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

NOT_ENDED: Final = "it was begun and not ended"
"""Why a handshake failed if its client went away."""
PLAIN: Final = "it does not speak TLS"
"""Why a handshake failed that never began."""
HANDSHAKE_BYTE: Final = b"\x16"
"""TLS begins so, and no request of HTTP."""
_SAID: Final = b"this address takes https only: ask for https://HOST:PORT\n"
HTTPS_ONLY: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SAID), _SAID)
)
"""The answer to a request of HTTP that came without TLS."""
_QUIET_S: Final = 60.0
_log = logging.getLogger(__name__)


class FailedHandshakes:
    """Counts failures, on any thread.

    Attributes:
        count: all of them.
        last: the last one; its client and reason are escaped.
    """

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
