"""All open lanes, and which aggregates stay in memory.

Eviction uses a clock (second chance): an aggregate that was used since the hand last passed stays for another round. That is
least-recently-used to within one round, for one attribute per command; a list in the order of use costs 0.1 µs more. A lane
with commands is never evicted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from eventstore_mailbox.core.state import AggregateQueue, CommandMailbox

_STEPS_MAX: Final = 32
"""Steps of the hand for each aggregate admitted: bounded work, and more steps than aggregates admitted."""
_SHRINK_STEPS_MAX: Final = 512
"""Steps of the hand in one turn (0.1 ms) when too many aggregates are in memory and none is admitted."""


class ResidentLanes:
    def __init__(self, aggregates_max: int, on_evicted: Callable[[str, object], None] | None = None) -> None:
        """`on_evicted`: see `Ports.evicted`."""
        self.by_id: dict[str, AggregateQueue] = {}
        self.evicted = 0
        self._clock: deque[AggregateQueue] = deque()
        self._aggregates_max = aggregates_max
        self._on_evicted = on_evicted
        self._fruitless = 0

    @property
    def resident(self) -> int:
        """Returns the number of aggregates in memory. It may include aggregates that were dropped since the hand last passed
        them.
        """
        return len(self._clock)

    def open(self, aggregate_id: str, mailbox: CommandMailbox) -> AggregateQueue:
        lane = self.by_id[aggregate_id] = AggregateQueue(aggregate_id, mailbox)
        return lane

    def close(self, lane: AggregateQueue) -> None:
        """Drops a lane and its aggregate. Precondition: it has no commands. The next command of this aggregate opens another
        lane."""
        lane.aggregate = None
        del self.by_id[lane.aggregate_id]

    def admit(self, lane: AggregateQueue, aggregate: object) -> None:
        """Keeps the aggregate in memory from now on."""
        lane.aggregate = aggregate
        if not lane.resident:
            lane.resident = True
            self._clock.append(lane)
            self._evict()

    @property
    def too_many(self) -> bool:
        """Whether `shrink` may find an aggregate to evict."""
        return len(self._clock) > self._aggregates_max and self._fruitless < 2 * len(self._clock)

    def shrink(self) -> None:
        """Evicts some aggregates after a burst, during which they had commands and could not be evicted."""
        self._evict(_SHRINK_STEPS_MAX)

    def leave(self) -> None:
        """Reports the aggregates that have no commands as evicted: the mailboxes end."""
        if self._on_evicted is not None:
            for lane in self._clock:
                if lane.aggregate is not None and lane.first is None:
                    self._on_evicted(lane.aggregate_id, lane.aggregate)

    def commands_left(self) -> None:
        """Notes that commands were answered, so their aggregates may be evicted now."""
        self._fruitless = 0

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless the clock has each of its lanes once."""
        clock = [lane.aggregate_id for lane in self._clock]
        assert len(self._clock) == len(set(self._clock)), f"a lane is twice on the clock: {clock}"
        assert all(lane.resident for lane in self._clock), f"a lane on the clock does not know it: {clock}"
        for lane in self.by_id.values():
            assert not lane.resident or lane in self._clock, f"the lane of {lane.aggregate_id!r} is not on the clock: {clock}"

    def _evict(self, steps_max: int = _STEPS_MAX) -> None:
        clock = self._clock
        for _ in range(steps_max):
            if len(clock) <= self._aggregates_max:
                return
            self._fruitless += 1
            lane = clock.popleft()
            if lane.aggregate is None:
                lane.resident = False
            elif lane.referenced or lane.first is not None:
                lane.referenced = False
                clock.append(lane)
            else:
                lane.resident = False
                aggregate = lane.aggregate
                self.close(lane)
                self.evicted += 1
                if self._on_evicted is not None:
                    self._on_evicted(lane.aggregate_id, aggregate)
                self._fruitless = 0
