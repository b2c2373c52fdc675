"""Extends the version cache by a file that was sorted, so that its aggregates stay known.

The index of the file says where each aggregate's rows are and which commands they hold. Reading it takes long for a large
file, so it comes in groups: prepared on any thread, added on the owner's in between two batches. Order matters: first the
directory gets the file, then the cache, then memory drops the unsorted file. So an entry that is loaded in between covers the
file already, and a reader that no longer finds the file in memory finds it in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from eventstore.arrays import np
from eventstore.store.memory.version_cache import VersionCache
from eventstore.store.sorted.directory_entry import RowRange
from eventstore.store.sorted.event_index import EventIndex

_GROUP = 1_000  # about a millisecond of the owner's thread


class SortedPart(NamedTuple):
    """What one sorted file holds of an aggregate.

    Attributes:
        hashes: 8 bytes a commit.
    """

    aggregate_id: str
    version: int
    rows: RowRange
    first_version: int
    hashes: bytes


def sorted_parts(index: EventIndex, cache: VersionCache) -> Iterator[list[SortedPart]]:
    """Yields what the file holds of each aggregate that the cache knows, in groups. For any thread.

    Raises:
        Corrupt, ReadFailed
    """
    ends, ids, first_row = (index.checked(name) for name in ("id_ends", "ids", "first_row"))
    names, versions, number = ids[:].tobytes(), index.columns["version"], index.header.number
    for first in range(0, index.header.aggregates, _GROUP):
        last = min(first + _GROUP, index.header.aggregates)
        bounds, rows = ends[first : last + 1].tolist(), first_row[first : last + 1].astype(np.int64)
        hashes, commits = index.grouped_command_hashes(rows)
        figures = (versions[rows[1:] - 1], versions[rows[:-1]], rows[:-1], np.diff(rows), commits[:-1], commits[1:])
        group = []
        for start, stop, version, first_version, row, count, begin, end in zip(
            bounds, bounds[1:], *(column.tolist() for column in figures), strict=False
        ):
            aggregate_id = names[start:stop].decode()
            if cache.peek(aggregate_id) is not None:
                part = RowRange(number, row, count)
                group.append(SortedPart(aggregate_id, version, part, first_version, hashes[8 * begin : 8 * end]))
        yield group


def extend(cache: VersionCache, parts: list[SortedPart]) -> None:
    """Adds one group, on the thread of the cache's owner, who called `begin_extension` before the first."""
    for part in parts:
        cache.extend(*part)
