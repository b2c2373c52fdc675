"""The last records that were written, by count: consumers that keep up never touch a file.

The bound is a number of records, not of bytes; a second bound in bytes is there only so that large messages cannot fill the
memory. Records come and go in the batches they were written in, so that keeping one costs two steps of a dict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

_NONE: Final = 2**64


class Recent:
    """Position → record, for the last `records_max` records. Belongs to one thread; `get` is safe on any."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records: dict[int, bytes] = {}
        self._batches: deque[tuple[list[int], int]] = deque()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.get = self._records.get
        self.oldest = _NONE
        """No record in front of this position is here."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, positions: list[int], records: Sequence[bytes], size_bytes: int) -> None:
        """Keeps the records of a batch, and lets go of the oldest beyond the bounds."""
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
        """Lets go of the oldest batch, or only of its first `over` records."""
        positions, size = self._batches.popleft()
        records = self._records
        if 0 < over < len(positions) and self._bytes <= self._bytes_max:
            gone, rest = positions[:over], positions[over:]
            freed = sum(len(records[position]) for position in gone)
            self._batches.appendleft((rest, size - freed))
        else:
            gone, freed = positions, size
        for position in gone:
            del records[position]
        self._bytes -= freed
        return over - len(gone)
