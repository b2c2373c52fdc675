"""Aggregate ids divided into ranges, so that a fold by aggregate needs no shuffle.

All events of an aggregate lie in one range. A task folds one range: of every sorted file it reads the rows whose ids are in
it, file by file, which is the order of their sequences. It does so in steps, each small enough that the states of all its
aggregates fit in memory. Where ranges and steps begin is taken from the split points in the indexes; a bad guess costs time,
never a row. What is behind the sorted files (as a rule the ongoing file) is brought to its range by Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from eventstore.chunks.header import ChunkHeader
from eventstore.store.index import blocks
from pyspark_eventstore.indexes import index_of
from pyspark_eventstore.options import Offsets
from pyspark_eventstore.predicates import Texts
from pyspark_eventstore.shards import Shard
from pyspark_eventstore.slices import Slice
from pyspark_eventstore.snapshot import Snapshot

RANGES_PER_CORE: Final = 2  # more would even out the load, but each opens every file and checks its index
RANGES_MAX: Final = 512
STEP_ROWS: Final = 65_536
_FILES_PER_STEP: Final = 64  # of more files a step would take so few rows that beginning to read costs more than these


@dataclass(frozen=True, slots=True)
class SortedPart:
    """A sorted file, whole."""

    shard: Shard
    header: ChunkHeader

    @property
    def slice(self) -> Slice:
        first, last = self.header.first_sequence, self.header.last_sequence
        return Slice(self.shard, self.header.number, first - 1, last, 0, self.header.end, first, 0)


@dataclass(frozen=True, slots=True)
class Ranges:
    """`files`: what is read by range, oldest first; it covers the sequences up to `upto` of each store. `steps[i]`: where the
    steps of range i begin, and where its last one ends (None: nowhere).
    """

    files: tuple[SortedPart, ...]
    upto: Offsets
    steps: tuple[tuple[bytes | None, ...], ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.header.end for part in self.files)

    @property
    def begins(self) -> list[bytes]:
        """Where each range begins, but for the first."""
        return [steps[0] or b"" for steps in self.steps[1:]]


def plan_ranges(snapshots: Iterable[Snapshot], ids: Texts, cores: int, step_rows: int = STEP_ROWS) -> Ranges:
    """The ranges of `ids`, which is everything or a prefix, over those files of each shard that were sorted first. A step has
    about `step_rows` rows, or more where there are hundreds of files.

    Raises:
        Corrupt: an index is damaged or missing.
    """
    files: list[SortedPart] = []
    upto: Offsets = {}
    for snapshot in snapshots:
        for file in itertools.takewhile(lambda each: each.header.sorted, snapshot.files):
            files.append(SortedPart(snapshot.shard, file.header))
            upto[snapshot.shard.store] = file.last_sequence
    points = sorted(point for part in files for point in _points(part) if ids.holds(point[0]))
    steps = _steps(points, ids.low, max(step_rows, len(files) * step_rows // _FILES_PER_STEP))
    return Ranges(tuple(files), upto, _grouped(steps, min(RANGES_PER_CORE * cores, RANGES_MAX), ids.high))


def _points(part: SortedPart) -> list[tuple[bytes, int]]:
    """The id that each block of the index begins with, and how many rows the block has."""
    index = index_of(part.shard, part.header)
    names = index.checked("split_ids").tobytes()
    ids = [names[a:b] for a, b in itertools.pairwise(index.checked("split_ends").tolist())]
    first_rows = index.columns["first_row"][blocks(index.header.aggregates)].tolist()
    return [(split, b - a) for split, (a, b) in zip(ids, itertools.pairwise(first_rows), strict=True)]


def _steps(points: Iterable[tuple[bytes, int]], low: bytes, rows: int) -> list[tuple[bytes, int]]:
    """Where steps begin that have about as many rows, the first at `low`; and how many each has."""
    found: list[tuple[bytes, int]] = []
    begin, weight = low, 0
    for split, count in points:
        if weight >= rows and split > begin:
            found.append((begin, weight))
            begin, weight = split, 0
        weight += count
    return [*found, (begin, weight)]


def _grouped(steps: list[tuple[bytes, int]], wanted: int, end: bytes | None) -> tuple[tuple[bytes | None, ...], ...]:
    """The steps as ranges of about as many rows each, at most `wanted`."""
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
