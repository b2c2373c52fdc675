"""Decides which rows of sorted files a shard hands out, if it has the files from before a split.

The slot of an aggregate is computed once for each file that has it, when a reader first comes to it. From then on a byte is
kept for each aggregate of a file.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from eventstore.arrays import np, npt
from eventstore.checksum import crc32c
from eventstore.records.slots import SLOTS, slot_of
from eventstore.records.splits import SlotFilter
from eventstore.store.sorted.event_index import EventIndex

_UNKNOWN: Final = 0
_OWN: Final = 1
_FOREIGN: Final = 2
_SPECIAL: Final = (b"{", b"$")

_Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
_States: TypeAlias = "npt.NDArray[np.uint8]"


class OwnRows:
    """The decisions for one filter at a time. With another filter it begins again."""

    def __init__(self) -> None:
        self._files: tuple[SlotFilter | None, dict[int, _States]] = None, {}

    def of(self, number: int, index: EventIndex, rows: _Ints, own: SlotFilter) -> _Ints:
        """Returns the rows in `rows` that the filter lets pass. For threads."""
        ordinals = index.checked("ordinal").take(rows)
        states = self._states(number, index, own)
        missing = np.unique(ordinals[states.take(ordinals) == _UNKNOWN])
        if len(missing):
            states[missing] = np.where(_owned(index, missing, own), _OWN, _FOREIGN)
        sequences = index.checked("sequence").take(rows)
        passing = cast(Mask, (states.take(ordinals) == _OWN) | (sequences > own.through))
        return rows[passing]

    def _states(self, number: int, index: EventIndex, own: SlotFilter) -> _States:
        made_for, files = self._files
        if made_for is not own:
            files = {}
            self._files = own, files
        states = files.get(number)
        if states is None or len(states) != index.header.aggregates:
            states = files[number] = np.zeros(index.header.aggregates, np.uint8)
        return states


def _owned(index: EventIndex, ordinals: _Ints, own: SlotFilter) -> Mask:
    """Returns for each aggregate whether the filter has its slot."""
    ends, ids = index.checked("id_ends"), index.checked("ids")
    begins, stops = ends.take(ordinals), ends.take(ordinals + 1)
    names = [ids[begin:stop].tobytes() for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True)]
    joined = b"".join(names)
    if any(each in joined for each in _SPECIAL):
        slots = [slot_of(name.decode()) for name in names]
    else:
        slots = [crc32c(name) % SLOTS for name in names]
    return np.isin(slots, list(own.slots))
