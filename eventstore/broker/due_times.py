"""When failed messages are due if the wall clock was ahead when they failed, and was set back since.

A message in a retry queue is due once its delay has passed since its time. If its time lies in the future, that would be much
later: so this process remembers on its monotonic clock up to where it saw the queue, and what it saw for a whole delay is due.
A process that has just started waits a whole delay at worst. Needed, and kept, only for queues with such messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from eventstore.records.state_record import QueueKey

LOOKS_PER_DELAY: Final = 8
_REMEMBERED_MAX: Final = 64


class DueTimes:
    """Belongs to one thread. `now` is in seconds, on a monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[QueueKey, deque[tuple[float, int]]] = {}

    def saw(self, key: QueueKey, end: int, delay_s: float, now: float) -> float:
        """Notes messages up to `end` whose time lies in the future. Returns in how many seconds to look again."""
        seen = self._seen.setdefault(key, deque())
        if not seen or (seen[-1][1] < end and len(seen) < _REMEMBERED_MAX):
            seen.append((now, end))
        return delay_s / LOOKS_PER_DELAY

    def due_before(self, key: QueueKey, offset: int, delay_s: float, now: float) -> int:
        """Returns the offset up to which messages were seen a whole delay ago; 0 if none is known."""
        seen = self._seen.get(key)
        if seen is None:
            return 0
        while seen and seen[0][1] <= offset:  # all of it has been read
            seen.popleft()
        if not seen:
            del self._seen[key]
            return 0
        return max((end for since, end in seen if since + delay_s <= now), default=0)
