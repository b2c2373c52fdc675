"""Checks each aggregate across all files: versions without gaps, command ids used once.

All files list their aggregates in the order of their ids, so one merge visits each aggregate once and keeps only the current
one in memory. A file with a sound index is read through its mapped columns; only for other files are the columns kept in
memory.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, Protocol

from eventstore.arrays import np, npt
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.slab import Ints
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.verification.check_commits import command_of
from eventstore.store.verification.file_contents import FileContents
from eventstore.store.verification.findings import Findings

_GROUP: Final = 20_000
Part = tuple[bytes, int, int, int, int, bytes]
"""(aggregate id, place of the table, first version, last version, ordinal in the table, 8 bytes of hash a command)"""


class AggregateTable(Protocol):
    """The aggregates of one file."""

    number: int

    def parts(self, place: int) -> Iterator[Part]:
        """Yields every aggregate, in the order of ids; `place` is the table's position, passed through."""

    def commits(self, ordinal: int) -> list[tuple[int, int, int]]:
        """Returns (hash of the command id, offset, length) of the aggregate's commits in this file."""


class IndexTable:
    """The aggregates of a file with a sound index. `hashes` replaces the hashes of the command id of each row, if the index has
    others.
    """

    def __init__(self, index: EventIndex, hashes: npt.NDArray[np.generic] | None = None) -> None:
        self.number = index.header.number
        self._index = index
        self._hashes = index.columns["command"][:] if hashes is None else hashes

    def parts(self, place: int) -> Iterator[Part]:
        columns = self._index.columns
        for first in range(0, self._index.header.aggregates, _GROUP):
            last = min(first + _GROUP, self._index.header.aggregates)
            ends = columns["id_ends"][first : last + 1].tolist()
            rows = columns["first_row"][first : last + 1].astype(np.int64)
            lows = columns["version"][rows[:-1]].tolist()
            highs = columns["version"][rows[1:] - 1].tolist()
            ids = columns["ids"][ends[0] : ends[-1]].tobytes()
            names = [ids[start - ends[0] : stop - ends[0]] for start, stop in itertools.pairwise(ends)]
            yield from zip(names, itertools.repeat(place), lows, highs, range(first, last), self._hashes_of(rows), strict=False)

    def _hashes_of(self, rows: Ints) -> list[bytes]:
        """Returns, for each aggregate of a group whose rows begin at `rows`, the hashes of its commits: one per record."""
        columns, first, last = self._index.columns, int(rows[0]), int(rows[-1])
        records = columns["record"][first:last]
        fresh = np.ones(last - first, bool)
        fresh[1:] = records[1:] != records[:-1]
        raw = self._hashes[first:last][fresh].tobytes()
        edges = (8 * np.concatenate([[0], np.cumsum(fresh)])[rows - first]).tolist()
        return [raw[start:stop] for start, stop in itertools.pairwise(edges)]

    def commits(self, ordinal: int) -> list[tuple[int, int, int]]:
        first, last = self._index.rows_of(ordinal)
        columns = self._index.columns
        records = columns["record"][first:last]
        fresh = np.ones(last - first, bool)
        fresh[1:] = records[1:] != records[:-1]
        hashes, lengths = self._hashes[first:last], columns["length"][first:last]
        return list(zip(hashes[fresh].tolist(), records[fresh].tolist(), lengths[fresh].tolist(), strict=True))


class MemoryTable:
    """The aggregates of a file that is not sorted or has no sound index, kept in memory."""

    def __init__(self, contents: FileContents) -> None:
        self.number = contents.number
        versions = contents.ints("commit_version")
        order = np.lexsort((versions, contents.ordinals))
        counts = contents.ints("commit_count")[order]
        self._edges = np.searchsorted(contents.ordinals[order], np.arange(len(contents.ids) + 1))
        self._lows = versions[order][self._edges[:-1]]
        self._highs = (versions[order] + counts - 1)[self._edges[1:] - 1]
        self._hashes = contents.columns["commit_shared"][order]
        self._offsets = contents.ints("commit_offset")[order]
        self._lengths = contents.ints("commit_length")[order]
        self._ids = contents.ids

    def parts(self, place: int) -> Iterator[Part]:
        raw = self._hashes.tobytes()
        hashes = (raw[start:stop] for start, stop in itertools.pairwise((8 * self._edges).tolist()))
        lows, highs = self._lows.tolist(), self._highs.tolist()
        yield from zip(self._ids, itertools.repeat(place), lows, highs, itertools.count(), hashes, strict=False)

    def commits(self, ordinal: int) -> list[tuple[int, int, int]]:
        first, last = int(self._edges[ordinal]), int(self._edges[ordinal + 1])
        columns = (self._hashes, self._offsets, self._lengths)
        hashes, offsets, lengths = (column[first:last].tolist() for column in columns)
        return list(zip(hashes, offsets, lengths, strict=True))


def check_aggregates(folder: ChunkFolder, tables: Sequence[AggregateTable], damaged: Sequence[int], findings: Findings) -> int:
    """Reports gaps and repetitions between files, and returns the number of aggregates. `tables` are in the order of files.

    A gap across a damaged file is not reported again: its events are missing anyway.
    """
    merged = heapq.merge(*(table.parts(place) for place, table in enumerate(tables)))
    aggregates = 0
    for aggregate_id, group in itertools.groupby(merged, key=itemgetter(0)):
        parts = list(group)
        aggregates += 1
        _check_versions(folder, tables, parts, damaged, findings)
        if len(parts) > 1 and _repeats(parts):
            _check_commands(folder, aggregate_id, tables, parts, findings)
    return aggregates


def _check_versions(
    folder: ChunkFolder, tables: Sequence[AggregateTable], parts: list[Part], damaged: Sequence[int], findings: Findings
) -> None:
    version, before = 0, 0
    for aggregate_id, place, low, high, ordinal, _ in parts:
        table = tables[place]
        explained = low > version and any(before <= number <= table.number for number in damaged)
        if low != version + 1 and not explained:
            offset = table.commits(ordinal)[0][1]
            what = f"aggregate {aggregate_id.decode()!r} goes from version {version} to version {low}"
            findings.add(str(folder.chunk_path(table.number)), offset, what)
        version, before = high, table.number


def _repeats(parts: list[Part]) -> bool:
    hashes = memoryview(b"".join([part[5] for part in parts])).cast("Q")
    return len(set(hashes)) < len(hashes)


def _check_commands(
    folder: ChunkFolder, aggregate_id: bytes, tables: Sequence[AggregateTable], parts: list[Part], findings: Findings
) -> None:
    """Checks command ids across files. Equal hashes only say "maybe", so the records are read and compared."""
    seen: dict[int, tuple[int, int, int]] = {}
    for _, place, _, _, ordinal, _ in parts:
        number = tables[place].number
        for hashed, offset, length in tables[place].commits(ordinal):
            other_number, other_offset, other_length = seen.setdefault(hashed, (number, offset, length))
            if other_number == number:
                continue  # the commit itself, or one in the same file, which was checked before
            command = _read_command(folder, number, offset, length)
            if command is not None and command == _read_command(folder, other_number, other_offset, other_length):
                where = f"{folder.chunk_path(other_number).name}, byte {other_offset}"
                what = f"command {command!r} of aggregate {aggregate_id.decode()!r} was used before, in {where}"
                findings.add(str(folder.chunk_path(number)), offset, what)


def _read_command(folder: ChunkFolder, number: int, offset: int, length: int) -> str | None:
    file = folder.files.open(folder.chunk_path(number))
    try:
        return command_of(file, offset, length)[1]
    except (ValueError, IndexError, struct.error):  # a damaged file with a sound index
        return None
    finally:
        file.close()
