"""Where the events of an aggregate are in the sorted files: asked of the directory, and of the indexes where the
directory's value is damaged.

The directory is derived data. A bit that rots in it must cost time and not an answer, and least of all the answer that
there is nothing. The next start builds it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from eventstore.errors import Corrupt
from eventstore.store.directory import Directory, Entry, Place
from eventstore.store.event_files import EventFiles


def look_up(directory: Directory, files: EventFiles, aggregate_id: bytes) -> Entry | None:
    """What the sorted files hold of the aggregate, None where that is nothing.

    Raises:
        Corrupt, ReadFailed: an index is damaged or cannot be read.
    """
    try:
        return directory.get(aggregate_id)
    except Corrupt as error:
        directory.distrust(error)
        return _from_indexes(files, aggregate_id)


def look_up_many(directory: Directory, files: EventFiles, aggregate_ids: Iterable[bytes]) -> dict[bytes, Entry]:
    """The same for many: one pass over the directory. Those that are in no sorted file are left out."""
    wanted = list(aggregate_ids)
    try:
        return directory.get_many(wanted)
    except Corrupt:
        found = ((aggregate_id, look_up(directory, files, aggregate_id)) for aggregate_id in wanted)
        return {aggregate_id: entry for aggregate_id, entry in found if entry is not None}


def _from_indexes(files: EventFiles, aggregate_id: bytes) -> Entry | None:
    version, places = 0, []
    for number in files.ranges.holding(aggregate_id):
        index = files.index(number)
        ordinal = index.find(aggregate_id)
        if ordinal is not None:
            first, last = index.rows_of(ordinal)
            version = index.version_at(last - 1)
            places.append(Place(number, first, last - first))
    return Entry(version, tuple(places)) if places else None
