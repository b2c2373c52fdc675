"""Lists aggregates in the order of their ids, page by page; merges the directory with the unsorted files.

Works from snapshots, like `replay`: the list of unsorted files is taken before the directory is read, so that an aggregate is
in one of the two. A page holds what was visible while it was made; nothing is kept between two pages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from heapq import merge
from itertools import groupby, islice

from eventstore.aggregate_info import AggregateInfo, IdRange
from eventstore.records.event_filter import LOG_RECORDS
from eventstore.records.splits import SlotFilter
from eventstore.store.memory.ordered_ids import OrderedIds
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail
from eventstore.store.read.aggregate_lookups import version_in_files
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.directory_lookup import versions_from
from eventstore.store.sorted.event_files import EventFiles


class AggregateLister:
    """Makes the pages."""

    def __init__(self, files: EventFiles, tail: UnsortedTail, directory: Directory) -> None:
        self._files = files
        self._tail = tail
        self._directory = directory
        self._ids: dict[int, OrderedIds] = {}
        self._lock = threading.Lock()

    def page(self, wanted: IdRange, count: int, visible: int, own: SlotFilter | None = None) -> list[AggregateInfo]:
        """Returns the first `count` aggregates of the range; fewer only if there are no more. `own`: the slots that a split
        shard hands out.

        Raises:
            Corrupt, ReadFailed: the directory is damaged, and so is an index that could stand in for it.
        """
        unsorted = self._tail.files
        rows: list[AggregateInfo] = []
        while True:
            missing = count - len(rows)
            candidates = self._candidates(unsorted, wanted, missing)
            for aggregate_id, sorted_version in candidates:
                if wanted.ends_before(aggregate_id):
                    return rows
                if own is not None and not own.owns(aggregate_id):
                    continue
                if not wanted.prefix and aggregate_id.startswith(LOG_RECORDS):
                    continue
                version = version_in_files(unsorted, aggregate_id, visible) or sorted_version
                if version and wanted.holds(aggregate_id):
                    rows.append(AggregateInfo(aggregate_id, version))
                    if len(rows) == count:
                        return rows
            if len(candidates) <= missing:
                return rows
            wanted = IdRange(wanted.prefix, candidates[-1][0])

    def _candidates(self, unsorted: Sequence[TailFile], wanted: IdRange, count: int) -> list[tuple[str, int]]:
        """Returns the next ids from the range's low end on, with their versions in sorted files. Returns one more than `count`,
        because the range may begin after the first.
        """
        count += 1
        low = wanted.low
        in_memory = merge(*(ids.beginning_at(low) for ids in self._ordered(unsorted)))
        found = dict.fromkeys(islice((aggregate_id for aggregate_id, _ in groupby(in_memory)), count), 0)
        found |= {key.decode(): version for key, version in versions_from(self._directory, self._files, low.encode(), count)}
        return sorted(found.items())[:count]

    def _ordered(self, unsorted: Sequence[TailFile]) -> list[OrderedIds]:
        """Returns the ordered ids of these files, and forgets the ids of other files."""
        with self._lock:
            known = self._ids
            self._ids = {
                file.number: ids if (ids := known.get(file.number)) is not None and ids.file is file else OrderedIds(file)
                for file in unsorted
            }
            return list(self._ids.values())
