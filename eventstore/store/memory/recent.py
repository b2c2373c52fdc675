"""The ring of the aggregates that changed last; their ids are what the preload file holds.

An append does nothing for it: the tail knows which commits are the last of their aggregates, and the records say of which. So
the ring follows the tail when it is asked for, and once more before memory drops a sorted file. Derived data: what cannot be
read is missing in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from eventstore.arrays import np
from eventstore.model import ID_BYTES_MAX
from eventstore.records.commit import HEADER, IDS_FROM, LONG_HEADER_BYTES, OWN_MARK_AT
from eventstore.store.memory.unsorted_tail import TailFile

_ID_LENGTH_AT: Final = HEADER["id_length"].offset
_ID_BEHIND_MARK: Final = IDS_FROM + 2
_GAP_BYTES_MAX: Final = 4 * 1024  # a read covers what is not wanted, rather than beginning again
_READ_BYTES_MAX: Final = 256 * 1024


class RecentAggregates:
    """Up to `count` ids, the last changed one last. Thread-safe. About 170 bytes an id, which the garbage collector skips."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ids: dict[str, None] = {}
        self._followed = 0, 0  # file, and how many of its commits
        self._lock = threading.Lock()

    def begin(self, aggregate_ids: Iterable[str]) -> None:
        """Takes the ids that an earlier process knew, the last changed one last."""
        with self._lock:
            self._add(aggregate_ids)

    def follow(self, files: Sequence[TailFile], visible_sequence: int) -> list[str]:
        """Adds the aggregates of the visible commits that it has not seen yet, and returns the ring."""
        with self._lock:
            for file in files if self._count else ():
                number, seen = self._followed
                commits = file.written_commits(visible_sequence)
                begin = seen if file.number == number else 0
                if file.number < number or commits <= begin:
                    continue
                try:
                    self._add(_ids(file, _last_of_each(file, begin, commits, self._count)))
                except OSError:
                    break  # the next call tries again
                self._followed = file.number, commits
            return list(self._ids)

    def _add(self, aggregate_ids: Iterable[str]) -> None:
        ids = self._ids
        for aggregate_id in aggregate_ids:
            ids.pop(aggregate_id, None)
            ids[aggregate_id] = None
        for aggregate_id in list(islice(ids, max(0, len(ids) - self._count))):
            del ids[aggregate_id]


def _last_of_each(file: TailFile, begin: int, end: int, count: int) -> list[int]:
    """Returns the last `count` of the commits [begin, end) that no later one of them continues."""
    previous = np.frombuffer(file.previous[begin:end], np.uint32).astype(np.int64) - begin  # of a copy: the array may grow
    last = np.ones(end - begin, bool)
    last[previous[(previous >= 0) & (previous < end - begin)]] = False
    ordinals: list[int] = (np.flatnonzero(last)[-count:] + begin).tolist()
    return ordinals


def _ids(file: TailFile, ordinals: Sequence[int]) -> Iterator[str]:
    """Reads the aggregate ids of ascending commits. Commits that lie near each other are read together."""
    assert file.file is not None, "a file is opened for reading before its commits become visible"
    offsets = [file.offsets[ordinal] for ordinal in ordinals]
    place = 0
    while place < len(offsets):
        begin, base = place, offsets[place]
        while place + 1 < len(offsets) and _near(base, offsets[place], offsets[place + 1]):
            place += 1
        data = file.file.read_at(base, offsets[place] - base + LONG_HEADER_BYTES + 2 + ID_BYTES_MAX)
        place += 1
        for offset in offsets[begin:place]:
            at = offset - base
            begin_id = at + data[at + OWN_MARK_AT] + _ID_BEHIND_MARK
            yield data[begin_id : begin_id + data[at + _ID_LENGTH_AT]].decode(errors="replace")


def _near(base: int, offset: int, following: int) -> bool:
    return following - offset <= _GAP_BYTES_MAX and following - base <= _READ_BYTES_MAX
