"""Finds the rows of sorted files that some tags have, in the order in which their events were committed.

A tag may be on every event of a file of millions: each page of a reader begins where the one before has ended, so what was
found last is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, TypeAlias

from eventstore.arrays import np, npt
from eventstore.query import Query
from eventstore.store.sorted.event_index import EventIndex

KEPT_ROWS_MAX: Final = 8 * 1024 * 1024
"""Of all queries, 4 bytes each; those of the last one are always kept."""
KEPT_QUERIES_MAX: Final = 64
"""Of one file each: a query may take 64 KiB on the wire."""
_KEPT_ROWS_MIN: Final = 1024  # fewer are found again in less than a millisecond

_Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"


class FoundRows:
    """The rows of the last queries by tags. For threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, Query], _Ints] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, index: EventIndex, query: Query) -> _Ints:
        """Returns the rows of a file that may pass, in the order of their sequence. Each item of the query has tags."""
        key = index.header.number, index.header.checksum, query
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        parts = [index.rows_with_tags(item.tags) for item in query.items]
        rows = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        rows = rows[np.argsort(index.checked("sequence").take(rows))].astype(np.uint32)
        if len(rows) >= _KEPT_ROWS_MIN:
            with self._lock:
                self._kept[key] = rows
                while len(self._kept) > 1 and (
                    len(self._kept) > KEPT_QUERIES_MAX or sum(map(len, self._kept.values())) > KEPT_ROWS_MAX
                ):
                    self._kept.popitem(last=False)
        return rows
