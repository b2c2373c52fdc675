"""The range cache: finds the sorted files that may hold an aggregate, by the smallest and largest id in each index header."""

from __future__ import annotations

from dataclasses import dataclass

from sortedcontainers import SortedKeyList


@dataclass(frozen=True, slots=True)
class CachedRange:
    smallest: bytes
    largest: bytes
    file: int


class RangeCache:
    """Ranges sorted by their smallest id, so that a search never visits a range that begins after the wanted id."""

    def __init__(self) -> None:
        self._ranges = SortedKeyList(key=lambda item: (item.smallest, item.file))
        self._by_file: dict[int, CachedRange] = {}

    def __bool__(self) -> bool:
        return bool(self._by_file)

    def add(self, smallest: bytes, largest: bytes, file: int) -> None:
        """Sets the range of a file."""
        before = self._by_file.pop(file, None)
        if before is not None:
            self._ranges.remove(before)
        self._by_file[file] = added = CachedRange(smallest, largest, file)
        self._ranges.add(added)

    def holding(self, aggregate_id: bytes) -> list[int]:
        """Returns the numbers of the files whose range contains the id, ascending."""
        return self.touching(aggregate_id, aggregate_id)

    def touching(self, smallest: bytes, largest: bytes) -> list[int]:
        """Returns the numbers of the files whose range overlaps [smallest, largest], ascending."""
        candidates = self._ranges.irange_key(None, (largest, 2**63))
        return sorted(item.file for item in candidates if item.largest >= smallest)

    def reaching(self, aggregate_id: bytes) -> list[int]:
        """Returns the numbers of the files that may hold this id or a larger one, ascending."""
        return sorted(item.file for item in self._ranges if item.largest >= aggregate_id)

    def with_prefix(self, prefix: bytes) -> list[int]:
        """Returns the numbers of the files that may hold an id with this prefix, ascending."""
        return self.touching(prefix, prefix + b"\xff" * 256)
