"""`TimerClock`: the time by which timers are due, and whether it can be trusted.

It follows the wall clock as it is. A wall clock that was set wrongly would send commands that are due in a year, which nobody
can take back. So after a jump of more than an hour, against a clock that nobody sets and that counts while the machine sleeps,
and while the clock is more than a minute from that of the cluster, it says that nothing may be sent. A jump lasts until
somebody confirms the time, or the clock is put right again.

A process that has just started knows of no jump: what has become due while none ran is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JUMP_US: Final = 3_600_000_000
DIFFERENCE_US: Final = 60_000_000


class TimerClock:
    """A clock made of two: `wall` in microseconds since 1970, and `steady` in microseconds. `difference_us`: how far the clock
    of the cluster is ahead at least, negative if it is behind; None: there is no such clock.
    """

    def __init__(
        self, wall: Callable[[], int], steady: Callable[[], int], difference_us: Callable[[], int | None] = lambda: None
    ) -> None:
        self._wall, self._steady, self._difference_us = wall, steady, difference_us
        self._offset_us = wall() - steady()
        self.jumped_us = 0

    def now_us(self) -> int:
        """Returns the time, and notes a jump since the last call. Steps of less than an hour are followed."""
        now_us = self._wall()
        offset_us = now_us - self._steady()
        jump_us = offset_us - self._offset_us + self.jumped_us  # since the time was trusted last
        if abs(jump_us) > JUMP_US:
            self.jumped_us = jump_us
        else:
            self.jumped_us = 0
        self._offset_us = offset_us
        return now_us

    @property
    def held(self) -> str | None:
        """Why nothing may be sent; None if it may."""
        difference_us = self._difference_us()
        if difference_us is not None and abs(difference_us) > DIFFERENCE_US:
            return f"the clock of this machine is {abs(difference_us) / 1e6:.0f} s from that of etcd; set it right"
        if self.jumped_us:
            return (
                f"the clock of this machine jumped by {self.jumped_us / 3.6e9:+.1f} hours; set it right, or confirm it with "
                "`eventstore timers confirm-clock`"
            )
        return None

    def confirm(self) -> None:
        """Takes the time as it is now for right."""
        self.now_us()
        self.jumped_us = 0
