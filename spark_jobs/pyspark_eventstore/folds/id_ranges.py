"""Divides aggregate ids into ranges, so that a fold by aggregate needs no shuffle.

All events of an aggregate are in one range. A task folds one range: it reads the rows of its ids from every sorted file, file
by file, which is the order of their sequences. It does so in steps small enough that the states of all aggregates of a step fit
in memory. Ranges and steps begin at split points of the indexes; a bad guess costs time, never a row. Spark brings events
outside the sorted files (usually events of the ongoing file) to their range.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from eventstore.chunks.header import ChunkHeader
from eventstore.store.sorted.index_format import blocks
from pyspark_eventstore.files.index_files import index_of
from pyspark_eventstore.source.data_folders import DataFolder
from pyspark_eventstore.source.predicates import Texts
from pyspark_eventstore.source.slices import Slice
from pyspark_eventstore.source.snapshot import FolderSnapshot
from pyspark_eventstore.source.source_options import Offsets

RANGES_PER_CORE: Final = 2  # more ranges would balance the load better, but each opens every file and checks its index
RANGES_MAX: Final = 512
STEP_ROWS: Final = 65_536
_FILES_PER_STEP: Final = 64  # with more files a step would read so few rows of each that opening them costs more


@dataclass(frozen=True, slots=True)
class SortedFilePart:
    """A whole sorted file."""

    data_folder: DataFolder
    header: ChunkHeader

    @property
    def slice(self) -> Slice:
        first, last = self.header.first_sequence, self.header.last_sequence
        return Slice(self.data_folder, self.header.number, first - 1, last, 0, self.header.end, first, 0)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges to fold.

    Attributes:
        files: the sorted files to read by range, oldest first.
        upto: the sequences up to which the files cover each store.
        steps: for each range, where its steps begin, and where the last one ends (None: open).
    """

    files: tuple[SortedFilePart, ...]
    upto: Offsets
    steps: tuple[tuple[bytes | None, ...], ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.header.end for part in self.files)

    @property
    def begins(self) -> list[bytes]:
        """The start of each range except the first."""
        return [steps[0] or b"" for steps in self.steps[1:]]


def plan_ranges(snapshots: Iterable[FolderSnapshot], ids: Texts, cores: int, step_rows: int = STEP_ROWS) -> Ranges:
    """Returns the ranges of `ids` (everything or a prefix) over the leading sorted files of each data folder. A step has
    about `step_rows` rows, more if there are hundreds of files.

    Raises:
        Corrupt: an index is damaged or missing.
    """
    files: list[SortedFilePart] = []
    upto: Offsets = {}
    for snapshot in snapshots:
        for file in itertools.takewhile(lambda each: each.header.sorted, snapshot.files):
            files.append(SortedFilePart(snapshot.data_folder, file.header))
            upto[snapshot.data_folder.store] = file.last_sequence
    points = sorted(point for part in files for point in _points(part) if ids.holds(point[0]))
    steps = _steps(points, ids.low, max(step_rows, len(files) * step_rows // _FILES_PER_STEP))
    return Ranges(tuple(files), upto, _grouped(steps, min(RANGES_PER_CORE * cores, RANGES_MAX), ids.high))


def _points(part: SortedFilePart) -> list[tuple[bytes, int]]:
    """Returns the first id of each block of the index, and its number of rows."""
    index = index_of(part.data_folder, part.header)
    names = index.checked("split_ids")[:].tobytes()
    ids = [names[a:b] for a, b in itertools.pairwise(index.checked("split_ends")[:].tolist())]
    first_rows = index.columns["first_row"].take(np.array(blocks(index.header.aggregates))).tolist()
    return [(split, b - a) for split, (a, b) in zip(ids, itertools.pairwise(first_rows), strict=True)]


def _steps(points: Iterable[tuple[bytes, int]], low: bytes, rows: int) -> list[tuple[bytes, int]]:
    """Returns the starts of steps with about equally many rows, the first at `low`, and the number of rows of each."""
    found: list[tuple[bytes, int]] = []
    begin, weight = low, 0
    for split, count in points:
        if weight >= rows and split > begin:
            found.append((begin, weight))
            begin, weight = split, 0
        weight += count
    return [*found, (begin, weight)]


def _grouped(steps: list[tuple[bytes, int]], wanted: int, end: bytes | None) -> tuple[tuple[bytes | None, ...], ...]:
    """Groups the steps into at most `wanted` ranges with about equally many rows."""
    rows = sum(count for _, count in steps)
    groups: list[list[bytes | None]] = [[]]
    done = 0
    for begin, count in steps:
        if done * wanted >= rows * len(groups) and groups[-1]:
            groups[-1].append(begin)
            groups.append([])
        groups[-1].append(begin)
        done += count
    groups[-1].append(end)
    return tuple(map(tuple, groups))
