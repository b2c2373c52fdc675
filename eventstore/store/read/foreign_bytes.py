"""How many bytes of its log a shard has only because it was split: events that other shards hand out.

An estimate, from places of sorted files that are evenly far apart: to know it exactly, each id and most columns of all indexes
would have to be read again after each split and start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from eventstore.arrays import np, npt
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import EventStoreError
from eventstore.records.splits import SlotFilter
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.sorted.index_columns import Column

_PLACES: Final = 16_384
_PLACES_OF_A_FILE: Final = (16, 512)
"""At least and at most. Each costs three or four pages of an index, which may have to come from the disk."""

_Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"


class ForeignBytes:
    """Measures each sorted file once for each filter. `measure` may be called on any thread, by one caller at a time."""

    def __init__(self, files: EventFiles, own: Callable[[], SlotFilter | None]) -> None:
        self._files, self._own = files, own
        self._made_for: SlotFilter | None = None
        self._found: dict[int, int] = {}
        self.total = 0
        """Bytes of foreign events of the files measured."""

    @property
    def shared(self) -> int:
        """Returns the bytes of the files that other shards have as well, from before splits; also of files that are not
        measured yet.
        """
        return sum(header.end for header in self._shared(self._own()))

    def measure(self) -> bool:
        """Measures one file that was not measured yet; returns whether another one is left. A file that cannot be read counts
        as empty until the next filter or start: readers report it.
        """
        own = self._own()
        if own != self._made_for:
            self._made_for, self._found = own, {}
        shared = self._shared(own)
        left = [header for header in shared if header.sorted and header.number not in self._found]
        if left and own is not None:
            places = min(max(_PLACES // len(shared), _PLACES_OF_A_FILE[0]), _PLACES_OF_A_FILE[1])
            self._found[left[0].number] = self._foreign(left[0], own, places)
        self.total = sum(self._found.values())
        return len(left) > 1

    def _foreign(self, header: ChunkHeader, own: SlotFilter, places: int) -> int:
        try:
            return round(_part(self._files.index(header.number), own, places) * header.end)
        except (EventStoreError, OSError):
            return 0

    def _shared(self, own: SlotFilter | None) -> list[ChunkHeader]:
        through = 0 if own is None else own.through
        return [header for header in self._files.headers if header.completed and header.first_sequence <= through]


def _rows_at(records: Column, rows: int, offsets: _Ints) -> _Ints:
    """Returns the row whose record holds each of these bytes, by bisection: few pages of the column are touched."""
    low, high = np.zeros(len(offsets), np.int64), np.full(len(offsets), rows)
    while (high - low).max(initial=0) > 1:
        middle = (low + high) // 2
        below = records.take(middle) <= offsets
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _part(index: EventIndex, own: SlotFilter, places: int) -> float:
    """Returns which part of a file's bytes other shards hand out. Checksums are not compared, because it is an estimate: a bit
    that flipped moves one place.
    """
    columns, rows = index.columns, index.header.rows
    if not rows:
        return 0.0
    records = columns["record"]
    first, end = int(records[0]), int(records[rows])
    offsets = first + (np.arange(places) + 0.5) * max(end - first, 0) / places
    at = _rows_at(records, rows, offsets.astype(np.int64))
    ordinals = np.minimum(columns["ordinal"].take(at), index.header.aggregates - 1)
    sequences = columns["sequence"].take(at)
    starts, ends = columns["id_ends"].take(ordinals), columns["id_ends"].take(ordinals + 1)
    ids, foreign = columns["ids"], 0
    for start, stop, sequence in zip(starts.tolist(), ends.tolist(), sequences.tolist(), strict=True):
        name = ids[start:stop].tobytes().decode(errors="replace")
        foreign += not own.passes(name, sequence)
    return foreign / places
