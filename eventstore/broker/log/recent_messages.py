"""The latest records, in memory: consumers that keep up never read a file.

The limit is a number of records; a second one in bytes only keeps large messages from filling the memory. Records are added
and dropped in the batches they were written in, so that keeping a record costs two dict operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

_NONE: Final = 2**64


class RecentMessages:
    """Position → record, for the last `records_max` records. Belongs to one thread; `get` is safe on any."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records: dict[int, bytes] = {}
        self._batches: deque[tuple[list[int], int]] = deque()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.get = self._records.get
        self.oldest = _NONE
        """No record before this position is held."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, positions: list[int], records: Sequence[bytes], size_bytes: int) -> None:
        """Adds the records of a batch, and drops the oldest ones beyond the limits."""
        excess = len(positions) - self._records_max
        if excess > 0:
            size_bytes -= sum(map(len, records[:excess]))
            positions, records = positions[excess:], records[excess:]
        self._records.update(zip(positions, records, strict=True))
        if not positions:
            return
        self._batches.append((positions, size_bytes))
        self._bytes += size_bytes
        over = len(self._records) - self._records_max
        while over > 0 or (self._bytes > self._bytes_max and self._batches):
            over = self._drop(over)
        self.oldest = self._batches[0][0][0] if self._batches else _NONE

    def _drop(self, over: int) -> int:
        """Drops the oldest batch, or only its first `over` records. Returns how many are left to drop."""
        positions, size = self._batches.popleft()
        records = self._records
        if 0 < over < len(positions) and self._bytes <= self._bytes_max:
            dropped, rest = positions[:over], positions[over:]
            freed = sum(len(records[position]) for position in dropped)
            self._batches.appendleft((rest, size - freed))
        else:
            dropped, freed = positions, size
        for position in dropped:
            del records[position]
        self._bytes -= freed
        return over - len(dropped)
