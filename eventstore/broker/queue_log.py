"""One queue as memory knows it: where it begins, and the entries that are not in its queue chunks yet (the tail).

Entries below `tail.base` are in queue chunks on disk; those of the message chunks that are not indexed yet are here. The
tail is replaced as a whole when it becomes shorter, so a reader on another thread that holds one sees a consistent state;
it only grows otherwise.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np

from eventstore.broker.state_record import QueueKey


class Tail:
    """Parallel arrays; the first item is that of queue offset `base`."""

    __slots__ = ("base", "keys", "lengths", "positions", "tags")

    def __init__(self, base: int) -> None:
        self.base = base
        self.positions = array("Q")
        self.lengths = array("I")
        self.tags = array("I")
        self.keys = array("I")

    @property
    def end(self) -> int:
        return self.base + len(self.positions)

    def below(self, position: int) -> int:
        """How many entries lie in front of this position of the log."""
        positions = self.positions
        count = len(positions)
        return count if not count or positions[count - 1] < position else bisect_left(positions, position)

    def without(self, count: int) -> Tail:
        """A tail without the first so many entries."""
        rest = Tail(self.base + count)
        rest.positions, rest.lengths = self.positions[count:], self.lengths[count:]
        rest.tags, rest.keys = self.tags[count:], self.keys[count:]
        return rest


class QueueLog:
    """The owner's thread appends and drops; readers take `tail` once and then work on that."""

    __slots__ = ("_counted", "_written_bytes", "first", "key", "tail")

    def __init__(self, key: QueueKey, first: int = 0) -> None:
        self.key = key
        self.first = first
        self.tail = Tail(first)
        self._counted = first
        self._written_bytes = 0

    @property
    def next_offset(self) -> int:
        """The offset the next message gets."""
        return self.tail.end

    def visible_end(self, visible_position: int) -> int:
        """Behind the last offset that a reader may see."""
        tail = self.tail
        return tail.base + tail.below(visible_position)

    def begin_at(self, offset: int) -> None:
        """The queue stood here when the first chunk that memory covers was begun."""
        self.tail = Tail(offset)
        self._counted = offset

    def undo_last(self) -> None:
        tail = self.tail
        for column in (tail.positions, tail.lengths, tail.tags, tail.keys):
            column.pop()

    def drop_below(self, position: int) -> None:
        """The entries in front of this position of the log are in queue chunks now."""
        count = self.tail.below(position)
        if count:
            self.count_bytes()
            self.tail = self.tail.without(count)

    def count_bytes(self) -> int:
        """The bytes of all messages sent since the broker was opened. Counted when somebody asks, not with every message."""
        tail = self.tail
        if self._counted > tail.end:  # a failed write took some back
            self._counted = tail.end
        new = tail.lengths[max(self._counted - tail.base, 0) :]
        self._written_bytes += int(np.frombuffer(new, np.uint32).sum(dtype=np.uint64))
        self._counted = tail.end
        return self._written_bytes
