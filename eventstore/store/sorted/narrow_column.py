"""A column of integers in as few bytes as its values need, read in place: the columns of an index of format 3.

Items are divided into groups of 1024. For each group a *frame* holds a straight line, `base` and `rise` over 1024 items; what
is stored of an item is its distance above that line, in as many bytes as the largest distance of the column needs. Evenly
spaced values, as the ends of ids of one length, take no bytes at all. Widths that are no power of two are stored as planes: of
three bytes the lower two of all items, then the third of all items, so that numpy reads each plane as an array.

This is a frame of reference with a slope: Goldstein, Ramakrishnan and Shaft, "Compressing Relations and Indexes", 1998.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from eventstore.arrays import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"

GROUP: Final = 1024
_GROUP_BITS: Final = 10
_PLANES: Final = (8, 4, 2, 1)
_STEEP: Final = 1 << 50
"""In a group whose values are further apart a line could overflow, so it gets a level one."""


def planes_of(width: int) -> list[int]:
    """Returns the bytes of an item in each plane, lowest bytes first: [2, 1] for a width of 3."""
    return [size for size in _PLANES if width & size]


def groups_of(items: int) -> int:
    return -(-items // GROUP)


class PackedColumn:
    """Values that are ready to be written: in each group less than 2⁶³ apart. `frames` has a base and a rise for each group,
    `planes` the distances.
    """

    def __init__(self, values: Ints) -> None:
        count = len(values)
        padded = np.pad(values.astype(np.int64), (0, -count % GROUP), mode="edge").reshape(-1, GROUP)
        last = np.full(len(padded), GROUP - 1)
        last[-1:] = (count - 1) % GROUP
        level_low, level_high = padded.min(1), padded.max(1)
        climbs = np.where(level_high - level_low < _STEEP, padded[np.arange(len(padded)), last] - padded[:, 0], 0)
        rises = climbs * GROUP // np.maximum(last, 1)
        tilted = padded - (rises[:, None] * np.arange(GROUP) >> _GROUP_BITS)
        beyond = np.arange(GROUP) > last[:, None]  # what was padded is on no line
        tilted_low = np.where(beyond, np.iinfo(np.int64).max, tilted).min(1)
        tilted_high = np.where(beyond, np.iinfo(np.int64).min, tilted).max(1)
        line = tilted_high - tilted_low < level_high - level_low
        bases = np.where(line, tilted_low, level_low)
        rises = np.where(line, rises, 0)
        self.frames = np.stack([bases, rises], 1)
        distances = (np.where(line[:, None], tilted, padded) - bases[:, None]).ravel()[:count]
        self.width = (int(distances.max(initial=0)).bit_length() + 7) // 8
        raw = distances.astype("<u8").view(np.uint8).reshape(count, 8)
        self.planes: list[bytes] = []
        start = 0
        for size in planes_of(self.width):
            self.planes.append(np.ascontiguousarray(raw[:, start : start + size]).tobytes())
            start += size


class NarrowColumn:
    """Reads a column from its frames and planes. It is indexed as an array of int64: by row, by slice, or by an array of rows.

    `item` returns the value of one row, which must not be negative.
    """

    def __init__(self, frames: Ints, planes: Sequence[Ints], items: int) -> None:
        """`frames`: base and rise for each group, in two columns."""
        self._bases, self._rises = frames[:, 0], frames[:, 1]
        self._planes = planes
        self._shifts = [8 * sum(each.itemsize for each in planes[:place]) for place in range(len(planes))]
        self._items = items
        self._base_at: Callable[[int], int] = self._bases.item
        self._rise_at: Callable[[int], int] = self._rises.item
        self.item = self._reader()

    def __len__(self) -> int:
        return self._items

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice | Ints) -> Ints: ...

    def __getitem__(self, key: int | slice | Ints) -> int | Ints:
        if isinstance(key, slice):
            first, last, step = key.indices(self._items)
            return self._part(first, last)[::step] if step > 0 else self._part(0, self._items)[key]
        if isinstance(key, np.ndarray):
            return self.take(np.flatnonzero(key) if key.dtype == bool else key)
        return self.item(int(key))

    def _reader(self) -> Callable[[int], int]:
        """Returns a function that returns the value of one row: a look-up calls it some thirty times."""
        base_at, rise_at = self._base_at, self._rise_at
        readers: list[Callable[[int], int]] = [plane.item for plane in self._planes]
        lowest, *higher = readers or [lambda row: 0]
        shifted = list(zip(higher, self._shifts[1:], strict=True))

        def item(row: int) -> int:
            group = row >> _GROUP_BITS
            value = base_at(group) + lowest(row)
            if rise := rise_at(group):
                value += rise * (row & GROUP - 1) >> _GROUP_BITS
            for plane, shift in shifted:
                value += plane(row) << shift
            return value

        return item

    def _part(self, first: int, last: int) -> Ints:
        if first >= last:
            return np.zeros(0, np.int64)
        low, high = first >> _GROUP_BITS, (last - 1 >> _GROUP_BITS) + 1
        start = low << _GROUP_BITS
        if high - low > 1:
            bases, rises = self._bases[low:high, None], self._rises[low:high, None]
            lines = (rises * np.arange(GROUP) >> _GROUP_BITS) + bases if rises.any() else bases.repeat(GROUP, 1)
            return self._raised(lines.ravel()[first - start : last - start], slice(first, last))
        base, rise = self._base_at(low), self._rise_at(low)
        if rise or not self._planes:
            return self._raised((rise * np.arange(first - start, last - start) >> _GROUP_BITS) + base, slice(first, last))
        return self._raised(base, slice(first, last))

    def take(self, rows: Ints) -> Ints:
        """Returns the values of these rows."""
        rows = np.asarray(rows, np.int64)
        groups = rows >> _GROUP_BITS
        return self._raised((self._rises[groups] * (rows & GROUP - 1) >> _GROUP_BITS) + self._bases[groups], rows)

    def _raised(self, line: int | Ints, rows: slice | Ints) -> Ints:
        """Returns the line and the distances above it."""
        for plane, shift in zip(self._planes, self._shifts, strict=True):
            distances = plane[rows].astype(np.int64)
            line = line + (distances << shift if shift else distances)
        return line  # type: ignore[return-value] # without planes it is an array
