"""Parts of event files, and how a query is divided into partitions of them.

A slice is described by sequences, which say the same before and after a file was sorted; byte offsets in it are only
used as long as the file is not sorted. Partitions hold about as many bytes as asked for: small slices are put together,
large sorted files are divided at their split points (the blocks of the index), the ongoing file where records begin.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.store.index import BLOCKS_MAX
from pyspark_eventstore.indexes import index_header, index_of
from pyspark_eventstore.options import Offsets
from pyspark_eventstore.predicates import Texts, Wanted
from pyspark_eventstore.shards import Shard
from pyspark_eventstore.snapshot import EventFile, Marks, Snapshot


@dataclass(frozen=True, slots=True)
class Slice:
    """The events of a file with sequences behind `after` and up to `upto`, and of a sorted one only those of the blocks
    [first_block, last_block) out of `blocks`. Of an unsorted one, they lie in the bytes [start, stop), where the first
    record has sequence `first_sequence`. `fault`: why the header of the file is lost.
    """

    shard: Shard
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
    """What one task reads."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


def plan(
    snapshots: Iterable[Snapshot], after: Offsets, upto: Offsets, wanted: Wanted, bytes_wanted: int, *, by_index: bool = True
) -> list[Slice]:
    """All slices that may hold something of what is wanted. Without `by_index`, a slice is a file."""
    found: list[Slice] = []
    for snapshot in snapshots:
        shard = snapshot.shard
        if not wanted.shards.holds(shard.path.encode()):
            continue
        low = max(after.get(shard.store, 0), wanted.sequences.low - 1)
        high = min(upto.get(shard.store, snapshot.last_sequence), wanted.sequences.high, snapshot.last_sequence)
        for file in snapshot.files:
            inside = file.first_sequence <= high and (file.last_sequence > low or file.fault is not None)
            if inside and wanted.files.holds(_name(shard, file).encode()):
                found += _slices(shard, file, low, high, wanted, bytes_wanted if by_index else None)
    return found


def partitions(slices: Iterable[Slice], bytes_wanted: int) -> list[EventPartition]:
    """Puts slices together, in their order, until they weigh as much as a partition should."""
    made: list[EventPartition] = []
    current: list[Slice] = []
    weight = 0
    for each in slices:
        if current and weight + each.weight > bytes_wanted:
            made.append(EventPartition(tuple(current)))
            current, weight = [], 0
        current.append(each)
        weight += each.weight
    return [*made, EventPartition(tuple(current))] if current else made


def _name(shard: Shard, file: EventFile) -> str:
    return shard.folder.chunk_path(file.number).name


def _slices(shard: Shard, file: EventFile, low: int, high: int, wanted: Wanted, bytes_wanted: int | None) -> Iterator[Slice]:
    after, upto = max(low, file.first_sequence - 1), min(high, file.last_sequence)
    share = (upto - after) / max(file.last_sequence - file.first_sequence + 1, 1)
    size = file.end - RECORDS_FROM
    whole = Slice(shard, file.number, after, upto, RECORDS_FROM, file.end, file.first_sequence, int(size * share))
    if bytes_wanted is None:
        yield replace(whole, fault=file.fault)
    elif file.header.sorted:
        yield from _sorted_slices(whole, file.header, wanted, share, bytes_wanted)
    else:
        yield from _unsorted_slices(whole, file.marks or Marks(), bytes_wanted)


def _sorted_slices(whole: Slice, chunk: ChunkHeader, wanted: Wanted, share: float, bytes_wanted: int) -> Iterator[Slice]:
    """By the index header alone, or by its split points where a range of ids is wanted."""
    ids = wanted.ids
    header = index_header(whole.shard, chunk)
    blocks = min(BLOCKS_MAX, header.aggregates)
    if not ids.may_lie_between(header.smallest, header.largest):
        return
    if ids.members is not None:
        among = sum(header.smallest <= text <= header.largest for text in ids.members)
        weight = whole.weight * min(among, header.aggregates) // header.aggregates
        yield replace(whole, blocks=blocks, last_block=blocks, weight=weight)
        return
    first, last = (0, blocks) if ids.all else _blocks_of(whole.shard, chunk, ids, blocks)
    parts = max(min(whole.weight * (last - first) // blocks // bytes_wanted, last - first), 1) if share > 0.5 else 1
    places = [first + (last - first) * place // parts for place in range(parts + 1)]
    for begin, end in itertools.pairwise(places):
        if begin < end:
            weight = whole.weight * (end - begin) // blocks
            yield replace(whole, first_block=begin, last_block=end, blocks=blocks, weight=weight)


def _blocks_of(shard: Shard, chunk: ChunkHeader, ids: Texts, blocks: int) -> tuple[int, int]:
    index = index_of(shard, chunk)
    names = index.checked("split_ids").tobytes()
    splits = [names[a:b] for a, b in itertools.pairwise(index.checked("split_ends").tolist())]
    first = max(bisect_right(splits, ids.low) - 1, 0)
    last = blocks if ids.high is None else bisect_left(splits, ids.high)
    return first, max(last, first)


def _unsorted_slices(whole: Slice, marks: Marks, bytes_wanted: int) -> Iterator[Slice]:
    """From mark to mark, each about as large as a partition."""
    start, sequence = marks.before(whole.after + 1) or (whole.start, whole.first_sequence)
    stop = min(whole.stop, marks.behind(whole.upto) or whole.stop)
    rest = replace(whole, start=start, stop=stop, first_sequence=sequence, weight=stop - start)
    for offset, sequence in marks.places:
        enough = offset - rest.start >= bytes_wanted and stop - offset >= bytes_wanted // 2
        if enough and sequence <= whole.upto:
            yield replace(rest, upto=sequence - 1, stop=offset, weight=offset - rest.start)
            rest = replace(rest, after=sequence - 1, start=offset, first_sequence=sequence, weight=stop - offset)
    yield rest
