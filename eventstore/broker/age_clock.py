"""The clock by which retention measures ages: it follows the wall clock, but never by a jump.

It advances at most twice as fast as the monotonic clock, and never goes back. So a wall clock that is ahead for a moment, even
by years, ages no chunk by more than that moment; and time in which no broker ran is caught up with in as much time again. It is
kept with the offsets, so that a restart is not a jump either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FASTEST: Final = 2  # times the monotonic clock


class AgeClock:
    """The clock of one broker, made from two clocks in seconds, `wall` and `monotonic`.

    `kept` is what `now` returned last, before a restart; None if that is not known. `oldest` is when the oldest chunk was
    created, in microseconds: if the kept time is older, because a clock began in 1970, the clock begins there.
    """

    def __init__(self, kept: int | None, oldest: int, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._looked = monotonic()
        begun = int(wall() * 1_000_000)
        self._now = begun if kept is None else max(kept, min(oldest, begun))

    def now(self) -> int:
        """Returns the time in microseconds."""
        looked = self._monotonic()
        fastest = self._now + int(_FASTEST * (looked - self._looked) * 1_000_000)
        self._looked = looked
        self._now = max(self._now, min(fastest, int(self._wall() * 1_000_000)))
        return self._now
