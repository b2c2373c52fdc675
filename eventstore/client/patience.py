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
    """What waits is looked at every `look_s`. `looks`: those in vain, whatever waits: calls come and go, and the server stays
    silent. `has_others`: there are other addresses to ask. `may_last`: all that waits may wait for long.

    Counts looks, not time, so that a client that was stopped itself does not take its server for dead.
    """

    def __init__(self, timeout_s: float, *, has_others: bool, idle_ping_s: float | None = None) -> None:
        """`timeout_s`: after this silence the connection is lost. `idle_ping_s`: after this silence the server is asked whether
        it is there although all that waits may last; None: half of the timeout.
        """
        self.look_s = min(LOOK_S, timeout_s / 4)
        self._timeout_s = timeout_s
        self._soon_s = min(PING_S, timeout_s / 2) if has_others else timeout_s / 2
        self._idle_s = min(idle_ping_s or timeout_s, timeout_s / 2)
        self._may_last = False
        self._has_others = has_others
        self.looks = 0
        self._soon_from = 0  # the looks before something began to wait that is due soon

    def waits(self, *, may_last: bool) -> None:
        """Notes what waits now. What may not last, and did not wait at the last look, is not late yet."""
        if self._may_last and not may_last:
            self._soon_from = self.looks
        self._may_last = may_last

    def heard(self) -> None:
        """Begins again: data has arrived, or nothing waits."""
        self.looks = self._soon_from = 0

    def looked(self) -> None:
        """Notes that nothing has arrived since the last look."""
        self.looks += 1

    @property
    def silent_s(self) -> float:
        """Returns for how long nothing has arrived."""
        return self.looks * self.look_s

    @property
    def _late_s(self) -> float:
        """Returns for how long a ping has been due; less than 0: it is not yet."""
        idle_s = self.silent_s - self._idle_s
        soon_s = (self.looks - self._soon_from) * self.look_s - self._soon_s
        return idle_s if self._may_last else max(idle_s, soon_s)

    @property
    def ping_due(self) -> bool:
        """Whether to ask now if the server is there: once in a silence."""
        return 0 <= self._late_s < self.look_s

    @property
    def others_due(self) -> bool:
        """Whether the others are to be asked, with each look from now on."""
        return self._has_others and self._late_s >= OTHERS_S - PING_S

    @property
    def is_lost(self) -> bool:
        """Whether the connection is to be given up."""
        return self.silent_s >= self._timeout_s
