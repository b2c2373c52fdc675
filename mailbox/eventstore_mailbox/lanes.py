"""Every aggregate that the mailboxes know: those with commands, and those in memory.

Which aggregates stay in memory is decided by a clock with one hand (second chance): a lane that was used since the hand last
came by stays for another round. That is least-recently-used to within one round, for one attribute per command; a list in the
order of use costs 0.1 µs more. A lane with commands is never evicted.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.lane import Lane

_STEPS_MAX: Final = 32
"""Of the hand for one aggregate that comes in: bounded work, and more than come in."""
_SHRINKING_STEPS_MAX: Final = 512
"""Of the hand in one turn, 0.1 ms, when too many are in memory and none comes in."""


class Lanes:
    def __init__(self, aggregates_max: int) -> None:
        self.by_id: dict[str, Lane] = {}
        self.evicted = 0
        self._ring: deque[Lane] = deque()
        self._aggregates_max = aggregates_max
        self._fruitless = 0

    @property
    def resident(self) -> int:
        """Aggregates in memory, and up to as many that were forgotten since the hand came by."""
        return len(self._ring)

    def open(self, aggregate_id: str, mailbox: CommandMailbox) -> Lane:
        lane = self.by_id[aggregate_id] = Lane(aggregate_id, mailbox)
        return lane

    def close(self, lane: Lane) -> None:
        """Precondition: it has no commands. What comes next for this aggregate opens another lane."""
        lane.aggregate = None
        del self.by_id[lane.aggregate_id]

    def keep(self, lane: Lane, aggregate: object) -> None:
        """The aggregate is in memory from now on."""
        lane.aggregate = aggregate
        if not lane.resident:
            lane.resident = True
            self._ring.append(lane)
            self._evict()

    @property
    def too_many(self) -> bool:
        """Whether `shrink` may find an aggregate to evict."""
        return len(self._ring) > self._aggregates_max and self._fruitless < 2 * len(self._ring)

    def shrink(self) -> None:
        """After a burst, whose aggregates could not be evicted while they had commands: a piece of the way down."""
        self._evict(_SHRINKING_STEPS_MAX)

    def settled(self) -> None:
        """Commands have left their lanes, so that these may be evicted."""
        self._fruitless = 0

    def _evict(self, steps_max: int = _STEPS_MAX) -> None:
        ring = self._ring
        for _ in range(steps_max):
            if len(ring) <= self._aggregates_max:
                return
            self._fruitless += 1
            lane = ring.popleft()
            if lane.aggregate is None:
                lane.resident = False
            elif lane.touched or lane.first is not None:
                lane.touched = False
                ring.append(lane)
            else:
                lane.resident = False
                self.close(lane)
                self.evicted += 1
                self._fruitless = 0
