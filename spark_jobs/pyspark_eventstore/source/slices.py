"""Divides a query into slices of event files, and slices into partitions.

A slice is described by sequences, which mean the same before and after its file is sorted; its byte offsets are used only
while the file is unsorted. Partitions hold about as many bytes as requested: small slices are combined, large sorted files
are split at the blocks of their index, the ongoing file at record boundaries.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.datasource import InputPartition

from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.store.sorted.index_format import BLOCKS_MAX
from pyspark_eventstore.files.index_files import index_header, index_of
from pyspark_eventstore.source.data_folders import DataFolder
from pyspark_eventstore.source.predicates import Texts, Wanted
from pyspark_eventstore.source.snapshot import EventFile, FolderSnapshot, RecordMarks
from pyspark_eventstore.source.source_options import PARTITION_BYTES, Offsets

_OPEN_BYTES: Final = 256 * 1024  # to open a file and its index takes as long as to read so much
_TASKS_EACH: Final = 2  # of a processor: parts are not equal
_TASK_BYTES_MIN: Final = 4 * 1024 * 1024  # below that a task is mostly overhead


@dataclass(frozen=True, slots=True)
class Slice:
    """The events of a file with sequences after `after`, up to and including `upto`.

    In a sorted file, only events in the blocks [first_block, last_block) out of `blocks`. In an unsorted file, the events are
    in the bytes [start, stop), whose first record has sequence `first_sequence`.

    Attributes:
        fault: why the header of the file is unreadable.
    """

    data_folder: DataFolder
    number: int
    after: int
    upto: int
    start: int
    stop: int
    first_sequence: int
    weight: int
    first_block: int = 0
    last_block: int = 1
    blocks: int = 1
    fault: str | None = None


class EventPartition(InputPartition):
    """The slices that one task reads."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


def plan(
    snapshots: Iterable[FolderSnapshot],
    after: Offsets,
    upto: Offsets,
    wanted: Wanted,
    bytes_wanted: int,
    *,
    by_index: bool = True,
) -> list[Slice]:
    """Returns all slices that may hold wanted events. Without `by_index`, a slice is a whole file."""
    found: list[Slice] = []
    for snapshot in snapshots:
        data_folder = snapshot.data_folder
        if wanted.ids.members is not None and not data_folder.may_hold(wanted.ids.members):
            continue
        low = after.get(data_folder.store, 0)
        high = min(upto.get(data_folder.store, snapshot.last_sequence), snapshot.last_sequence)
        for file in snapshot.files:
            inside = file.first_sequence <= high and (file.last_sequence > low or file.fault is not None)
            if inside:
                found += _slices(data_folder, file, low, high, wanted, bytes_wanted if by_index else None)
    return found


def bytes_per_task(snapshots: Iterable[FolderSnapshot], processors: int) -> int:
    """Returns how much a task reads unless the query says it: all processors have work, and a task is worth its overhead."""
    total = sum(file.end + _OPEN_BYTES for snapshot in snapshots for file in snapshot.files)
    return min(max(total // (_TASKS_EACH * max(processors, 1)), _TASK_BYTES_MIN), PARTITION_BYTES)


def partitions(slices: Iterable[Slice], bytes_wanted: int) -> list[EventPartition]:
    """Combines slices, in order, into partitions of the requested size; a small one counts as much as it takes to open it."""
    made: list[EventPartition] = []
    current: list[Slice] = []
    weight = 0
    for each in slices:
        if current and weight + each.weight > bytes_wanted:
            made.append(EventPartition(tuple(current)))
            current, weight = [], 0
        current.append(each)
        weight += max(each.weight, _OPEN_BYTES)
    return [*made, EventPartition(tuple(current))] if current else made


def _slices(
    data_folder: DataFolder, file: EventFile, low: int, high: int, wanted: Wanted, bytes_wanted: int | None
) -> Iterator[Slice]:
    after, upto = max(low, file.first_sequence - 1), min(high, file.last_sequence)
    share = (upto - after) / max(file.last_sequence - file.first_sequence + 1, 1)
    size = file.end - RECORDS_FROM
    whole = Slice(data_folder, file.number, after, upto, RECORDS_FROM, file.end, file.first_sequence, int(size * share))
    if bytes_wanted is None:
        yield replace(whole, fault=file.fault)
    elif file.header.sorted:
        yield from _sorted_slices(whole, file.header, wanted, share, bytes_wanted)
    else:
        yield from _unsorted_slices(whole, file.marks or RecordMarks(), bytes_wanted)


def _sorted_slices(whole: Slice, chunk: ChunkHeader, wanted: Wanted, share: float, bytes_wanted: int) -> Iterator[Slice]:
    """Slices a sorted file by its index header alone, or by its split points if a range of ids is wanted."""
    ids = wanted.ids
    header = index_header(whole.data_folder, chunk)
    blocks = min(BLOCKS_MAX, header.aggregates)
    if not ids.may_lie_between(header.smallest, header.largest):
        return
    if ids.members is not None:
        among = sum(header.smallest <= text <= header.largest for text in ids.members)
        weight = whole.weight * min(among, header.aggregates) // header.aggregates
        yield replace(whole, blocks=blocks, last_block=blocks, weight=weight)
        return
    first, last = (0, blocks) if ids.all else _blocks_of(whole.data_folder, chunk, ids, blocks)
    parts = max(min(whole.weight * (last - first) // blocks // bytes_wanted, last - first), 1) if share > 0.5 else 1
    places = [first + (last - first) * place // parts for place in range(parts + 1)]
    for begin, end in itertools.pairwise(places):
        if begin < end:
            weight = whole.weight * (end - begin) // blocks
            yield replace(whole, first_block=begin, last_block=end, blocks=blocks, weight=weight)


def _blocks_of(data_folder: DataFolder, chunk: ChunkHeader, ids: Texts, blocks: int) -> tuple[int, int]:
    index = index_of(data_folder, chunk)
    names = index.checked("split_ids")[:].tobytes()
    splits = [names[a:b] for a, b in itertools.pairwise(index.checked("split_ends")[:].tolist())]
    first = max(bisect_right(splits, ids.low) - 1, 0)
    last = blocks if ids.high is None else bisect_left(splits, ids.high)
    return first, max(last, first)


def _unsorted_slices(whole: Slice, marks: RecordMarks, bytes_wanted: int) -> Iterator[Slice]:
    """Slices an unsorted file from mark to mark, each about as large as a partition."""
    start, sequence = marks.before(whole.after + 1) or (whole.start, whole.first_sequence)
    stop = min(whole.stop, marks.behind(whole.upto) or whole.stop)
    rest = replace(whole, start=start, stop=stop, first_sequence=sequence, weight=stop - start)
    for offset, sequence in marks.places:
        enough = offset - rest.start >= bytes_wanted and stop - offset >= bytes_wanted // 2
        if enough and sequence <= whole.upto:
            yield replace(rest, upto=sequence - 1, stop=offset, weight=offset - rest.start)
            rest = replace(rest, after=sequence - 1, start=offset, first_sequence=sequence, weight=stop - offset)
    yield rest
