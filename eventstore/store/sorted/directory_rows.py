"""Many rows of the directory at once: the rows that a sorted file adds, and a page of the rows that are there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import lmdb

from eventstore.errors import Corrupt
from eventstore.store.sorted.directory_entry import check_entry, decode_entry
from eventstore.store.sorted.event_index import EventIndex

_CHUNK_KEYS: Final = 20_000


def groups_of(index: EventIndex) -> Iterable[list[tuple[bytes, int, int, int, int]]]:
    """Yields (id, version, first row, rows, first version) of every aggregate, in key order, in large groups."""
    rows = index.columns["first_row"][:].astype("int64")
    ends = index.columns["id_ends"][:].astype("int64")
    ids = index.columns["ids"][:].tobytes()
    versions = index.columns["version"]
    for first in range(0, index.header.aggregates, _CHUNK_KEYS):
        last = min(first + _CHUNK_KEYS, index.header.aggregates)
        starts, stops = rows[first:last], rows[first + 1 : last + 1]
        names = zip(ends[first:last].tolist(), ends[first + 1 : last + 1].tolist(), strict=True)
        figures = (versions[stops - 1], starts, stops - starts, versions[starts])
        yield [
            (ids[start:stop], version, row, count, first_version)
            for (start, stop), version, row, count, first_version in zip(
                names, *(column.tolist() for column in figures), strict=True
            )
        ]


def read_versions(cursor: lmdb.Cursor, low: bytes, count: int, name: str) -> list[tuple[bytes, int]]:
    """Returns up to `count` ids that are not smaller than `low`, in order, with their versions. `name`: the directory's, for
    errors.

    Raises:
        Corrupt: an entry among them or before them is damaged, or keys are out of order.
    """
    found: list[tuple[bytes, int]] = []
    more = cursor.set_range(low)
    before = _key_before(cursor, more, name)
    while more and len(found) < count:
        key, value = cursor.item()
        found.append((bytes(key), decode_entry(key, value, name).version))
        more = cursor.next()
    keys = [key for key, _ in found]
    in_order = all(first < second for first, second in pairwise(keys)) and (not keys or keys[0] >= low)
    if not in_order or (before is not None and before >= low):
        raise Corrupt(name, 0, f"keys are out of order from {low!r} on")
    return found


def _key_before(cursor: lmdb.Cursor, inside: bool, name: str) -> bytes | None:
    """Returns the key before the cursor's, or the last one if the cursor is after it. A cursor inside stays where it is."""
    if not (cursor.prev() if inside else cursor.last()):
        if inside:
            cursor.first()
        return None
    key = check_entry(*cursor.item(), name)
    if inside:
        cursor.next()
    return key
