"""Which dead letters of a group were replayed: so that a second replay of all delivers only what is new.

Kept with the committed offsets, as ranges of offsets in `dead:GROUP`. They are of one topic, by its number: one that is created
after a purge begins with other dead letters at the same offsets. Belongs to one thread. Touches no disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.errors import Overloaded

RANGES_MAX: Final = 1_000  # of a group; each keeps a place in the document


class ReplayedLetters:
    """Those of all groups."""

    def __init__(self, document: OffsetsDocument) -> None:
        self._document = document

    def ranges(self, group: str, topic_id: int) -> list[tuple[int, int]]:
        """Returns the ranges of offsets, each from its first to before its end, in order."""
        known, ranges = self._document.replayed.get(group, (topic_id, ()))
        return list(ranges) if known == topic_id else []

    def with_more(self, group: str, topic_id: int, offsets: Iterable[int], begin: int) -> list[tuple[int, int]]:
        """Returns the ranges with more offsets, and without those of letters that the topic, which now begins at `begin`, does
        not have any more. Raises Overloaded: they would be too many.
        """
        ranges = [(first, end) for first, end in self.ranges(group, topic_id) if end > begin]
        for offset in offsets:
            _insert(ranges, offset)
        if len(ranges) > RANGES_MAX:
            raise Overloaded(
                f"dead letters of group {group!r} were replayed in {RANGES_MAX:,} ranges, the limit; replay those between, or "
                "purge them",
                group=group,
                limit=RANGES_MAX,
            )
        return ranges

    def keep(self, group: str, topic_id: int, ranges: list[tuple[int, int]]) -> None:
        self._document.replayed[group] = topic_id, ranges
        self._document.changed = True

    def forget(self, group: str) -> None:
        """Drops those of a deleted group."""
        self._document.replayed.pop(group, None)


def _insert(ranges: list[tuple[int, int]], offset: int) -> None:
    place = bisect_right(ranges, (offset, offset))
    if place and ranges[place - 1][1] >= offset:
        place -= 1
        first, end = ranges.pop(place)
        end = max(end, offset + 1)
    else:
        first, end = offset, offset + 1
    while place < len(ranges) and ranges[place][0] <= end:
        end = max(end, ranges.pop(place)[1])
    ranges.insert(place, (first, end))
