"""How long a connection has been silent while something waits for it, and what to do then. Has no clock: the caller looks."""

from __future__ import annotations

from typing import Final

LOOK_S: Final = 0.5
"""How often a silent connection is looked at."""
PING_S: Final = 1.0
"""After this silence a server that is not the only one is asked whether it is there."""
IDLE_PING_S: Final = 1.5
"""After this silence it is asked where only that waits which may rightly wait for long: subscriptions and pulls."""
OTHERS_S: Final = 2.0
"""After this silence the others are asked: a busy server has had a second to answer the ping. With the time to the next look
that is less than the shortest lease and two seconds: a new leader is known within two seconds of the end of the old lease."""
FIRST_S: Final = 1.0
"""How long the first of several addresses is waited for before all of them are tried at once. A round trip over an ocean, with
TLS, takes half of it."""


class Patience:
    """What waits is looked at every `look_s`; after `ping_s` the server is asked whether it is there. `looks`: those in vain.
    `has_others`: there are other addresses to ask. `may_last`: all that waits may wait for long; then it is asked after
    `idle_ping_s`.

    Counts looks, not time, so that a client that was stopped itself does not take its server for dead.
    """

    def __init__(self, timeout_s: float, *, has_others: bool, idle_ping_s: float | None = None) -> None:
        """`timeout_s`: after this silence the connection is lost. `idle_ping_s`: None: half of it."""
        self.look_s = min(LOOK_S, timeout_s / 4)
        self._timeout_s = timeout_s
        self._soon_s = min(PING_S, timeout_s / 2) if has_others else timeout_s / 2
        self._idle_s = min(idle_ping_s or timeout_s, timeout_s / 2)
        self._may_last = False
        self._has_others = has_others
        self.looks = 0

    @property
    def ping_s(self) -> float:
        """Returns after which silence the server is asked whether it is there."""
        return self._idle_s if self._may_last else self._soon_s

    def waits(self, *, may_last: bool) -> None:
        """Notes what waits now. Begins again if that may not last and what did might."""
        if may_last != self._may_last:
            self._may_last, self.looks = may_last, 0

    def heard(self) -> None:
        """Begins again: data has arrived, or nothing waits."""
        self.looks = 0

    def looked(self) -> None:
        """Notes that nothing has arrived since the last look."""
        self.looks += 1

    @property
    def silent_s(self) -> float:
        """Returns for how long nothing has arrived."""
        return self.looks * self.look_s

    @property
    def ping_due(self) -> bool:
        """Whether to ask now if the server is there: once in a silence."""
        return self.silent_s - self.look_s < self.ping_s <= self.silent_s

    @property
    def others_due(self) -> bool:
        """Whether the others are to be asked, with each look from now on."""
        return self._has_others and self.silent_s >= self.ping_s + (OTHERS_S - PING_S)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is to be given up."""
        return self.silent_s >= self._timeout_s
