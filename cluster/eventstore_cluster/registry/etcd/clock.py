"""How far the clock of this machine is from etcd's, which all nodes ask: by the date of its answers.

Nothing rests on it: leases are counted on a clock that is never set. Events have the time of the leader that stored them, so
after a change of leaders they go back, or jump, by as much as the clocks differ.

A date has whole seconds, and the clock was read while the request was under way: so an answer says in which range the
difference lies. Several answers say it more closely, and what is shown is the least that fits all of them.
"""

from __future__ import annotations

from collections import deque
from email.utils import parsedate_to_datetime
from typing import Final

_KEPT: Final = 32
_DATE_S: Final = 1.0


class ClockDifference:
    """The difference, narrowed down by several answers.

    Attributes:
        seconds: how far etcd's clock is ahead at least, negative if it is behind; 0 if they may be equal.
    """

    def __init__(self) -> None:
        self._ranges: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def note(self, sent: float, date: str | None, received: float) -> None:
        """Takes the date of an answer, and the own time before the request and after the answer."""
        if date is None:
            return
        try:
            then = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):  # not from etcd
            return
        found = (then - received, then + _DATE_S - sent)
        low, high = self._common()
        if self._ranges and not (found[0] <= high and low <= found[1]):  # a clock was set, or another etcd answers
            self._ranges.clear()
        self._ranges.append(found)

    @property
    def seconds(self) -> float:
        if not self._ranges:
            return 0.0
        low, high = self._common()
        return max(low, 0.0) or min(high, 0.0)

    def _common(self) -> tuple[float, float]:
        if not self._ranges:
            return 0.0, 0.0
        return max(low for low, _ in self._ranges), min(high for _, high in self._ranges)
