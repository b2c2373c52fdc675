"""The range cache: which sorted files can hold an aggregate, from the smallest and largest id in each index header."""

from __future__ import annotations

from dataclasses import dataclass

from sortedcontainers import SortedKeyList


@dataclass(frozen=True, slots=True)
class Range:
    smallest: bytes
    largest: bytes
    file: int


class RangeCache:
    """Ranges sorted by their smallest id, so that those beginning behind the wanted id are never looked at."""

    def __init__(self) -> None:
        self._ranges = SortedKeyList(key=lambda item: (item.smallest, item.file))
        self._by_file: dict[int, Range] = {}

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, smallest: bytes, largest: bytes, file: int) -> None:
        """The range of a file, instead of the one it had before."""
        before = self._by_file.pop(file, None)
        if before is not None:
            self._ranges.remove(before)
        self._by_file[file] = added = Range(smallest, largest, file)
        self._ranges.add(added)

    def holding(self, aggregate_id: bytes) -> list[int]:
        """File numbers, ascending, whose range contains the id."""
        return self.touching(aggregate_id, aggregate_id)

    def touching(self, smallest: bytes, largest: bytes) -> list[int]:
        """File numbers, ascending, whose range overlaps [smallest, largest]."""
        candidates = self._ranges.irange_key(None, (largest, 2**63))
        return sorted(item.file for item in candidates if item.largest >= smallest)

    def with_prefix(self, prefix: bytes) -> list[int]:
        """File numbers, ascending, that can hold an id beginning with `prefix`."""
        return self.touching(prefix, prefix + b"\xff" * 256)
