"""The most frequent keys, in bounded memory: the space-saving counter of Metwally, Agrawal and El Abbadi (2005)."""

from __future__ import annotations


class TopK:
    """Counts at most `size` keys. A count is too high by at most the count of the rarest key kept."""

    __slots__ = ("_counts", "_size")

    def __init__(self, size: int) -> None:
        self._counts: dict[str, int] = {}
        self._size = size

    def add(self, key: str, weight: int = 1) -> None:
        counts = self._counts
        if key in counts:
            counts[key] += weight
        elif len(counts) < self._size:
            counts[key] = weight
        else:
            rarest = min(counts, key=counts.__getitem__)
            counts[key] = counts.pop(rarest) + weight

    def top(self) -> list[tuple[str, int]]:
        """Returns keys and counts, most frequent first."""
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
