"""Finds the rows of an aggregate in the sorted files: in the directory, or in the indexes if the directory is damaged.

The directory is derived data. Damage to it may cost time, but must never change an answer, least of all to "no such
aggregate". The next start rebuilds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge

from eventstore.errors import Corrupt
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.directory_entry import DirectoryEntry, RowRange
from eventstore.store.sorted.event_files import EventFiles


def find_entry(directory: Directory, files: EventFiles, aggregate_id: bytes) -> DirectoryEntry | None:
    """Returns the aggregate's entry, or None if it is in no sorted file.

    Raises:
        Corrupt, ReadFailed: an index is damaged or cannot be read.
    """
    try:
        return directory.get(aggregate_id)
    except Corrupt as error:
        directory.report_damage(error)
        return _from_indexes(files, aggregate_id)


def find_entries(directory: Directory, files: EventFiles, aggregate_ids: Iterable[bytes]) -> dict[bytes, DirectoryEntry]:
    """Returns the entries of many aggregates in one pass over the directory. Leaves out aggregates in no sorted file."""
    wanted = list(aggregate_ids)
    try:
        return directory.get_many(wanted)
    except Corrupt:
        found = ((aggregate_id, find_entry(directory, files, aggregate_id)) for aggregate_id in wanted)
        return {aggregate_id: entry for aggregate_id, entry in found if entry is not None}


def versions_from(directory: Directory, files: EventFiles, low: bytes, count: int) -> list[tuple[bytes, int]]:
    """Returns up to `count` ids of the sorted files that are not smaller than `low`, in order, with their versions there.

    Raises:
        Corrupt, ReadFailed: an index is damaged or cannot be read.
    """
    try:
        return directory.versions_from(low, count)
    except Corrupt as error:
        directory.report_damage(error)
    found: dict[bytes, int] = {}
    for aggregate_id, version in merge(*(files.index(number).ids_from(low) for number in files.ranges.reaching(low))):
        if len(found) == count and aggregate_id not in found:
            break
        found[aggregate_id] = version  # of several files the last one has the highest
    return list(found.items())


def _from_indexes(files: EventFiles, aggregate_id: bytes) -> DirectoryEntry | None:
    version, row_ranges = 0, []
    for number in files.ranges.holding(aggregate_id):
        index = files.index(number)
        ordinal = index.find(aggregate_id)
        if ordinal is not None:
            first, last = index.rows_of(ordinal)
            version = index.version_at(last - 1)
            row_ranges.append(RowRange(number, first, last - first))
    return DirectoryEntry(version, tuple(row_ranges)) if row_ranges else None
