"""Delays between attempts to connect, and the time to give up. Has no clock: the caller passes the time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_DELAY_S: Final = 0.05
DELAY_S_MAX: Final = 2.0
STABLE_S: Final = 5.0


class Backoff:
    """Doubling delays with jitter, so that a thousand clients of one server do not reconnect in the same millisecond.

    The first attempt after a loss is immediate. An answer ends a loss, or a connection that lasts; a mere connection does not:
    a server that accepts and then fails at once is retried like one that is down.
    """

    def __init__(self, timeout_s: float, chance: Callable[[], float] = random.random) -> None:
        self._timeout_s = timeout_s
        self._chance = chance
        self._since: float | None = None
        self._connected: float | None = None
        self._attempts = 0

    def lost(self, now_s: float) -> None:
        """Records the loss of the connection. Does nothing while an earlier loss continues."""
        if self._connected is not None and now_s - self._connected >= STABLE_S:
            self._since = None
        self._connected = None
        if self._since is None:
            self._since = now_s
            self._attempts = 0

    def connected(self, now_s: float) -> None:
        """Records a new connection."""
        self._connected = now_s

    def recovered(self) -> None:
        """Ends the loss."""
        self._since = None

    def renew(self) -> None:
        """Begins the delays again, as after something has changed at the server. The loss continues."""
        self._attempts = 0

    def lost_for_s(self, now_s: float) -> float:
        """Returns how long the loss lasts, 0 if there is none."""
        return 0.0 if self._since is None else now_s - self._since

    def expired(self, now_s: float, *, others_left: bool = False) -> bool:
        """Whether the loss has lasted longer than the timeout. With a timeout of 0, the addresses that are left are tried."""
        is_over = self._since is not None and now_s - self._since >= self._timeout_s
        return is_over and not (others_left and self._timeout_s == 0)

    def delay_s(self) -> float:
        """Returns the time to wait before the next attempt."""
        attempt = self._attempts
        self._attempts += 1
        if attempt == 0:
            return 0.0
        longest = min(DELAY_S_MAX, FIRST_DELAY_S * float(2 ** min(attempt - 1, 10)))
        return longest * (0.5 + 0.5 * self._chance())
