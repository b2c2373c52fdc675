"""The columns of an event index as readers see them, whatever its format.

Columns of rows: `ordinal`, `version`, `sequence`, `time`, `type`, `command`, `format`; `record` and `length` (where the commit
record begins and its size; of `record` one item more than rows: where the last record ends), `place` (of the event in its
commit) and `left` (events of its commit after it); `data`, `data_len`, `meta`, `meta_len` (payloads within the file; meta is 0
for none). `permutation`: row of the i-th event in commit order. Tables: as in `index_format`. In an index of format 3 some of
them are made from others when they are read; in an older one that is true of `place`, `left` and the last item of `record`.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, cast, overload

from eventstore.arrays import np
from eventstore.store.sorted.file_columns import bytes_head
from eventstore.store.sorted.index_format import (
    COLUMNS,
    FORMAT,
    NARROW,
    NARROW_ROWS,
    NARROW_TABLES,
    NARROW_TAGS,
    TAG_COLUMNS,
    WIDE,
    ColumnPlace,
    IndexHeader,
)
from eventstore.store.sorted.narrow_column import NarrowColumn

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints: TypeAlias = "npt.NDArray[np.integer[Any]]"

PERMUTATIONS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of those that are kept; the last one always is."""
_STEP: Final = 65_536

_MADE_OF: Final = {
    "length": ("record", "left"),
    "data": ("record", "data_at"),
    "meta": ("record", "data_at", "data_len", "meta_size"),
    "meta_len": ("meta_size",),
    "permutation": ("sequence",),
}
_MADE_OF_WIDE: Final = {"place": ("record",), "left": ("record",)}


class Column(Protocol):
    """What a numpy array of integers and a `NarrowColumn` have in common."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, key: int) -> Any: ...

    @overload
    def __getitem__(self, key: slice | Ints) -> Ints: ...

    def item(self, row: int) -> int:
        """Returns the value of one row."""

    def take(self, rows: Ints) -> Ints:
        """Returns the values of these rows."""


def sources_of(header: IndexHeader, name: str) -> tuple[str, ...]:
    """Returns the columns of the index that this column is read from."""
    if header.format != FORMAT:
        return _MADE_OF_WIDE.get(name, (name,))
    made_of = _MADE_OF.get(name, (name,))
    if name in NARROW_TAGS:
        return name, "tag_frames"
    frames = "id_frames" if name in NARROW_TABLES else "frames"
    return (*made_of, frames) if COLUMNS.get(made_of[0], "") == NARROW else made_of


def mapped_columns(header: IndexHeader, index: memoryview) -> dict[str, Column]:
    """Returns all columns, over the mapped index."""
    if header.format != FORMAT:
        return _wide(header, index)
    columns: dict[str, Column] = {}
    for names, frames in ((NARROW_ROWS, "frames"), (NARROW_TABLES, "id_frames"), (NARROW_TAGS, "tag_frames")):
        if frames not in header.columns:
            continue
        lines = _arrays(header.columns[frames], index)[0].reshape(-1, len(names), 2)
        for number, name in enumerate(names):
            place = header.columns[name]
            columns[name] = NarrowColumn(lines[:, number], _arrays(place, index), place.items)
    for name in (COLUMNS.keys() | TAG_COLUMNS.keys() & header.columns.keys()) - columns.keys():
        columns[name] = cast(Column, _arrays(header.columns[name], index)[0])
    return columns | _derived(columns, header)


def _arrays(place: ColumnPlace, index: memoryview) -> list[Ints]:
    kinds = [f"<u{size}" for size in place.planes] if place.dtype[0] == NARROW else [place.dtype]
    extents = place.extents(0, place.items)
    return [np.frombuffer(index[start:stop], kind) for (start, stop), kind in zip(extents, kinds, strict=True)]


class _Made(ABC):
    """A column that is made from others. It holds no reference to itself: with the last one to an index its map has to go."""

    def __init__(self, items: int) -> None:
        self._items = items

    @abstractmethod
    def _values(self, rows: slice | Ints) -> Ints:
        """Returns the values of rows: a slice with a step of 1, or an array."""

    def __len__(self) -> int:
        return self._items

    @overload
    def __getitem__(self, key: int) -> Any: ...

    @overload
    def __getitem__(self, key: slice | Ints) -> Ints: ...

    def __getitem__(self, key: int | slice | Ints) -> Any:
        if isinstance(key, slice):
            first, last, step = key.indices(self._items)
            assert step == 1
            return self._values(slice(first, last))
        if isinstance(key, np.ndarray):
            return self._values(np.flatnonzero(key) if key.dtype == bool else key)
        return self.item(key)

    def item(self, row: int) -> int:
        """Returns the value of one row."""
        return int(self._values(slice(row, row + 1))[0])

    def take(self, rows: Ints) -> Ints:
        """Returns the values of these rows."""
        return self._values(np.asarray(rows))


class _Computed(_Made):
    """Each value follows from values of other columns in a few rows."""

    def __init__(self, make: Callable[[slice | Ints], Ints], items: int) -> None:
        super().__init__(items)
        self._make = make

    def _values(self, rows: slice | Ints) -> Ints:
        return self._make(rows)


def _derived(columns: dict[str, Column], header: IndexHeader) -> dict[str, Column]:
    record, left = columns["record"], columns["left"]
    data_at, data_len, meta_size = columns["data_at"], columns["data_len"], columns["meta_size"]

    def length(rows: slice | Ints) -> Ints:
        after = (np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows) + 1 + left[rows]
        return record.take(after) - record[rows]

    def data(rows: slice | Ints) -> Ints:
        return record[rows] + data_at[rows]

    def meta(rows: slice | Ints) -> Ints:
        sizes = meta_size[rows]
        return np.where(sizes > 0, data(rows) + data_len[rows] + bytes_head(sizes - 1), 0)

    def meta_len(rows: slice | Ints) -> Ints:
        return np.maximum(meta_size[rows] - 1, 0)

    made = {"length": length, "data": data, "meta": meta, "meta_len": meta_len}
    permutation: Column = _Permutation(columns["sequence"])
    return {"permutation": permutation, **{name: _Computed(make, header.rows) for name, make in made.items()}}


def _nothing() -> None:
    """Stands in for a permutation that was not made yet."""


class _Permutation(_Made):
    """Made at its first use, 4 bytes a row. The last ones of the process are kept."""

    _kept: ClassVar[deque[Ints]] = deque()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, sequence: Column) -> None:
        super().__init__(len(sequence))
        self._sequence = sequence
        self._known: Callable[[], Ints | None] = _nothing

    def _values(self, rows: slice | Ints) -> Ints:
        return self._whole()[rows]

    def _whole(self) -> Ints:
        whole = self._known()
        if whole is None:
            whole = self._computed()
            self._known = weakref.ref(whole)
            with self._lock:
                self._kept.append(whole)
                while len(self._kept) > 1 and sum(each.nbytes for each in self._kept) > PERMUTATIONS_BYTES_MAX:
                    self._kept.popleft()
        return whole

    def _computed(self) -> Ints:
        count = len(self)
        if not count:
            return np.zeros(0, np.uint32)
        whole = np.empty(count, np.uint32)
        first = min(int(self._sequence[row : row + _STEP].min()) for row in range(0, count, _STEP))
        for row in range(0, count, _STEP):  # in steps: numpy lets no other thread run meanwhile
            part = self._sequence[row : row + _STEP]
            whole[part - first] = np.arange(row, row + len(part), dtype=np.uint32)
        return whole


def _wide(header: IndexHeader, index: memoryview) -> dict[str, Column]:
    columns: dict[str, Column] = {name: cast(Column, _arrays(header.columns[name], index)[0]) for name in WIDE}
    record, length = columns["record"], columns["length"]

    def place(rows: slice | Ints) -> Ints:
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return wanted - np.searchsorted(cast("Ints", record), record[rows])

    def left(rows: slice | Ints) -> Ints:
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return np.searchsorted(cast("Ints", record), record[rows], side="right") - wanted - 1

    commits = {"place": _Computed(place, header.rows), "left": _Computed(left, header.rows)}
    return {**columns, **commits, "record": _Records(record, length)}


class _Records(_Made):
    """Where the records of a wide index begin, and as one item more, where the last one ends."""

    def __init__(self, record: Column, length: Column) -> None:
        super().__init__(len(record) + 1)
        self._last = len(record)
        self._end = int(record[-1]) + int(length[-1]) if len(record) else 0
        self._record = record

    def _values(self, rows: slice | Ints) -> Ints:
        return self._record[rows]

    def item(self, row: int) -> int:
        """Returns where a record begins, or behind the last row, where the last one ends."""
        return self._end if row == self._last else self._record.item(row)
