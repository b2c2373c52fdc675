"""The aggregate ids of an unsorted file in their order, for readers that list them. Appends neither know nor wait for it.

The file keeps its ids in a dict, which is in the order of the first commits. Here they are kept as sorted runs of some thousand
ids, made on the first request and extended by the ids that are new since: a page is merged from the runs. Nothing takes longer
than sorting a run, except the first copy of the dict's references (about 10 ms for a million), because a thread that holds the
GIL for long stops the event loop.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import takewhile
from typing import Final

from eventstore.store.memory.unsorted_tail import TailFile

_RUN_IDS: Final = 4_096


class OrderedIds:
    """The ids of one file. Costs 8 bytes each after the first request. Safe on any thread."""

    def __init__(self, file: TailFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._runs: list[list[str]] = []
        self._fresh: list[str] = []  # in no run yet
        self._latest: str | None = None
        self._undone = file.undone

    def beginning_at(self, low: str) -> Iterator[str]:
        """Iterates over the ids from `low` on, in order. Includes ids whose commits are not visible yet, or were undone."""
        with self._lock:
            self._extend()
            runs = [*self._runs, sorted(self._fresh)]
        return merge(*(map(run.__getitem__, range(bisect_left(run, low), len(run))) for run in runs))

    def _extend(self) -> None:
        undone = self.file.undone  # first: an id that is undone later is asked for again
        if undone != self._undone:
            self._runs, self._fresh, self._latest = [], [], None
        new = self._newest()
        self._undone = undone
        if new:
            self._latest = new[-1]
        self._fresh += new
        while len(self._fresh) >= _RUN_IDS:
            self._runs.append(sorted(self._fresh[:_RUN_IDS]))
            del self._fresh[:_RUN_IDS]

    def _newest(self) -> list[str]:
        """Returns the ids that were added after the latest known one, oldest first."""
        heads, latest = self.file.heads, self._latest
        if latest is None:
            return list(heads)
        while True:
            try:  # one step of C, which no append can come between
                return list(takewhile(latest.__ne__, reversed(heads)))[::-1]
            except RuntimeError:  # it came before that step
                continue
