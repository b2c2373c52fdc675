"""One queue in memory: its first offset, and the tail, which holds the entries that are not in queue chunks yet.

Entries below `tail.base` are in queue chunks on disk; entries of message chunks that are not indexed yet are in the tail. The
tail only grows in place. To be shortened it is replaced as a whole, so a reader on another thread sees a consistent one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from eventstore.arrays import np
from eventstore.records.state_record import QueueKey

_FEW: Final = 2_000
"""Lengths that are summed in 20 µs, for which numpy need not be imported: 10 MB, and a tenth of a second for all clients."""


class QueueTail:
    """Entries in parallel arrays; the first one has the queue offset `base`."""

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
        """Returns the number of entries before this position of the log."""
        positions = self.positions
        count = len(positions)
        return count if not count or positions[count - 1] < position else bisect_left(positions, position)

    def without(self, count: int) -> QueueTail:
        """Returns a tail without the first `count` entries."""
        rest = QueueTail(self.base + count)
        rest.positions, rest.lengths = self.positions[count:], self.lengths[count:]
        rest.tags, rest.keys = self.tags[count:], self.keys[count:]
        return rest


class QueueLog:
    """One queue. The owner's thread appends and drops; a reader takes `tail` once and works on that."""

    __slots__ = ("_counted", "_written_bytes", "first", "key", "tail")

    def __init__(self, key: QueueKey, first: int = 0) -> None:
        self.key = key
        self.first = first
        self.tail = QueueTail(first)
        self._counted = first
        self._written_bytes = 0

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return self.tail.end

    def visible_end(self, visible_position: int) -> int:
        """Returns the offset after the last visible one."""
        tail = self.tail
        return tail.base + tail.below(visible_position)

    def begin_at(self, offset: int) -> None:
        """Sets the next offset at the start of the first chunk that the tail covers."""
        self.tail = QueueTail(offset)
        self._counted = offset

    def undo_last(self) -> None:
        tail = self.tail
        for column in (tail.positions, tail.lengths, tail.tags, tail.keys):
            column.pop()

    def drop_below(self, position: int) -> None:
        """Drops the entries before this position of the log, which are in queue chunks."""
        count = self.tail.below(position)
        if count:
            self.count_bytes()
            self.tail = self.tail.without(count)

    def count_bytes(self) -> int:
        """Returns the bytes of all messages sent since the broker was opened. Counted on request, not with each message."""
        tail = self.tail
        if self._counted > tail.end:  # entries were removed after a failed write
            self._counted = tail.end
        new = tail.lengths[max(self._counted - tail.base, 0) :]
        few = len(new) < _FEW
        self._written_bytes += sum(new) if few else int(np.frombuffer(new, np.uint32).sum(dtype=np.uint64))
        self._counted = tail.end
        return self._written_bytes
