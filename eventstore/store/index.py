"""The event index beside a sorted event file: columns of fixed width, mapped into memory after first use.

    0 .. 4096       header: which event file it belongs to, smallest and largest aggregate id, directory of the columns
    then            the columns, each beginning at a multiple of 64 bytes, each with a CRC-32C in the directory

Rows are events in the file's order: by (aggregate id, version). Columns of rows: `ordinal` (of the aggregate),
`version`, `sequence`, `time`, `type` (ordinal), `command` (hash of the command id), `record`, `length` (where the
commit record begins and its size), `data`, `data_len`, `meta`, `meta_len` (payloads within the file; meta is 0 for
none), `format`. `permutation`: row of the event with sequence first + i, which keeps the commit order. Tables:
`first_row` and `extent_crc` (of all bytes of the aggregate), `id_ends` + `ids`, `type_ends` + `types`; `split_ends` +
`split_ids` + `block_crc`: the aggregates are divided into up to 100 blocks of equal count; the id each begins with,
and a CRC over the block's part of the tables. `row_crc`: for every 1024 rows, a CRC over those columns of them that a
look-up uses.

A look-up touches one block: smallest/largest, then a bisect in the splits, the block's CRC once, a bisect in the block,
and the CRC of the rows it finds. Nothing is believed that was not checked: a rotten bit would else read as "not found".
"""

from __future__ import annotations

import itertools
import struct
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from eventstore.chunks.files import File, Files
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt

MAGIC: Final = b"EVTINDEX"
FORMAT: Final = 1
HEADER_BYTES: Final = 4096
HEADER: Final = struct.Struct("<8sHHIQ16sQQIIQQQ")
ENTRY: Final = struct.Struct("<12s4sQII")
IDS_AT: Final = 3072
ALIGN: Final = 64
BLOCKS_MAX: Final = 100
ROWS_PER_CRC: Final = 1024

ROWS: Final = {
    "ordinal": "<u4", "version": "<u8", "sequence": "<u8", "time": "<i8", "type": "<u4", "command": "<u8",
    "record": "<u4", "length": "<u4", "data": "<u4", "data_len": "<u4", "meta": "<u4", "meta_len": "<u4", "format":
    "|u1",
}  # fmt: skip
TABLES: Final = {
    "permutation": "<u4", "first_row": "<u4", "extent_crc": "<u4", "id_ends": "<u4", "ids": "|u1",
    "type_ends": "<u4", "types": "|u1", "split_ends": "<u4", "split_ids": "|u1", "block_crc": "<u4", "row_crc": "<u4",
}  # fmt: skip
COLUMNS: Final = {**ROWS, **TABLES}
LOOKED_UP: Final = ("ordinal", "version", "sequence", "command", "record", "length")

Column = npt.NDArray[np.generic]
Columns = dict[str, "npt.NDArray[np.generic]"]


def command_hash(command_id: bytes) -> int:
    """64 bits of a command id, the same in every process. A hit is always verified against the record."""
    return int(crc32c(command_id)) << 32 | zlib.crc32(command_id)


def hash_commands(command_ids: list[bytes]) -> npt.NDArray[np.uint64]:
    """`command_hash` of each, at half the cost."""
    upper, lower = (np.array(list(map(crc, command_ids)), np.uint64) for crc in (crc32c, zlib.crc32))
    return upper << np.uint64(32) | lower


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 4096 bytes of an index: enough to know whether an aggregate may be in its file."""

    number: int
    store: uuid.UUID
    first_sequence: int
    rows: int
    aggregates: int
    types: int
    checksum: int
    end: int
    smallest: bytes
    largest: bytes
    columns: dict[str, tuple[int, int, int]]

    def belongs_to(self, header: ChunkHeader) -> bool:
        """Whether this is the index of exactly this event file."""
        mine = (self.number, self.store, self.first_sequence, self.checksum, self.end)
        return mine == (header.number, header.store, header.first_sequence, header.checksum, header.end)


def blocks(aggregates: int) -> list[int]:
    """The ordinals at which the blocks begin, and the end of the last."""
    count = min(BLOCKS_MAX, aggregates)
    return [place * aggregates // count for place in range(count + 1)] if count else [0]


def block_crc(columns: Columns, first: int, last: int) -> int:
    """The checksum over what the tables say of the aggregates [first, last)."""
    ends = columns["id_ends"]
    parts = (
        ends[first : last + 1],
        columns["first_row"][first : last + 1],
        columns["extent_crc"][first:last],
        columns["ids"][int(ends[first]) : int(ends[last])],
    )
    crc = 0
    for part in parts:
        crc = crc32c(np.ascontiguousarray(part).view(np.uint8).data, crc)
    return crc


def row_crc(columns: Columns, group: int) -> int:
    """The checksum over what a look-up uses of one group of rows."""
    crc = 0
    for name in LOOKED_UP:
        part = columns[name][group * ROWS_PER_CRC : (group + 1) * ROWS_PER_CRC]
        crc = crc32c(np.ascontiguousarray(part).view(np.uint8).data, crc)
    return crc


def row_groups(rows: int) -> int:
    return -(-rows // ROWS_PER_CRC)


def write_index(files: Files, path: Path, chunk: ChunkHeader, columns: Columns) -> None:
    """Writes the index of `chunk` to `path`, which must not exist; synced on return."""
    ids, ends = columns["ids"], columns["id_ends"]
    smallest, largest = bytes(ids[: int(ends[1])].data), bytes(ids[int(ends[-2]) :].data)
    entries, buffers, position = [], [], HEADER_BYTES
    for name, dtype in COLUMNS.items():
        raw = np.ascontiguousarray(columns[name], dtype=dtype).view(np.uint8).tobytes()
        entries.append(ENTRY.pack(name.encode(), dtype.encode(), position, len(columns[name]), crc32c(raw)))
        padding = -len(raw) % ALIGN
        buffers += [raw, bytes(padding)]
        position += len(raw) + padding
    fixed = HEADER.pack(
        MAGIC, FORMAT, len(entries), HEADER_BYTES, chunk.number, chunk.store.bytes, chunk.first_sequence,
        len(columns["ordinal"]), len(ends) - 1, len(columns["type_ends"]) - 1, chunk.checksum, chunk.end, position,
    )  # fmt: skip
    names = bytes((len(smallest),)) + smallest + bytes((len(largest),)) + largest
    head = (fixed + b"".join(entries)).ljust(IDS_AT, b"\0") + names
    head = head.ljust(HEADER_BYTES - 4, b"\0")
    file = files.open(path, create=True)
    try:
        file.write_at(0, [head + crc32c(head).to_bytes(4, "little"), *buffers])
        file.sync()
    finally:
        file.close()


def read_header(file: File, name: str) -> IndexHeader:
    """Raises Corrupt when the header is damaged or of another format; the index can be rebuilt then."""
    raw = file.read_at(0, HEADER_BYTES)
    if len(raw) < HEADER_BYTES or raw[:8] != MAGIC:
        raise Corrupt(name, 0, "this is not an event index")
    if crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise Corrupt(name, 0, "the checksum of the index header does not match")
    (_, format_, count, _, number, store, first, rows, aggregates, types, checksum, end, size) = HEADER.unpack_from(raw)
    if format_ != FORMAT or file.size() != size:
        raise Corrupt(name, 0, f"format {format_} and {file.size()} bytes, expected format {FORMAT} and {size} bytes")
    columns = {}
    for place in range(count):
        entry, _, offset, items, crc = ENTRY.unpack_from(raw, HEADER.size + place * ENTRY.size)
        columns[entry.rstrip(b"\0").decode()] = (offset, items, crc)
    if missing := COLUMNS.keys() - columns.keys():
        raise Corrupt(name, 0, f"column {min(missing)} is missing; rebuild the index")
    split = IDS_AT + 1 + raw[IDS_AT]
    smallest, largest = raw[IDS_AT + 1 : split], raw[split + 1 : split + 1 + raw[split]]
    return IndexHeader(
        number, uuid.UUID(bytes=store), first, rows, aggregates, types, checksum, end, smallest, largest, columns
    )


class EventIndex:
    """A mapped index. Columns are numpy arrays over the mapped file, read in place.

    `on_damage` is told, on whatever thread that is, before an operation raises Corrupt for what the index holds.
    """

    def __init__(self, file: File, name: str, on_damage: Callable[[], None] = lambda: None) -> None:
        self.header = read_header(file, name)
        self.name = name
        self._on_damage = on_damage
        self._map = np.frombuffer(file.map(), np.uint8)
        self.columns: Columns = {column: self._column(column) for column in COLUMNS}
        self._record = self.columns["record"]
        self._length = self.columns["length"]
        self._version = self.columns["version"]
        starts = blocks(self.header.aggregates)
        self._blocks = starts
        self._sound_blocks = bytearray(len(starts))
        self._sound_rows = bytearray(row_groups(self.header.rows))
        self._sound_columns: set[str] = set()
        for column in ("split_ends", "split_ids", "block_crc", "row_crc"):
            self.checked(column)
        ends = self.columns["split_ends"].tolist()
        split_ids = self.columns["split_ids"].tobytes()
        self._splits = [split_ids[a:b] for a, b in itertools.pairwise(ends)]

    def _column(self, name: str) -> Column:
        dtype = np.dtype(COLUMNS[name])
        offset, items, _ = self.header.columns[name]
        return self._map[offset : offset + items * dtype.itemsize].view(dtype)

    def checked(self, name: str) -> Column:
        """A whole column, verified against its checksum the first time.

        Raises:
            Corrupt
        """
        column = self.columns[name]
        if name not in self._sound_columns:
            offset, _, crc = self.header.columns[name]
            if crc32c(np.ascontiguousarray(column).view(np.uint8).data) != crc:
                raise self._damaged(offset, f"the checksum of column {name} does not match")
            self._sound_columns.add(name)
        return column

    def find(self, aggregate_id: bytes) -> int | None:
        """The aggregate's ordinal in this file, or None.

        Raises:
            Corrupt: the block it would be in is damaged.
        """
        if not self.header.smallest <= aggregate_id <= self.header.largest:
            return None
        block = bisect_right(self._splits, aggregate_id) - 1
        first, last = self._blocks[block], self._blocks[block + 1]
        self._check_block(block)
        first = self._bisect(aggregate_id, first, last)
        return first if first < self.header.aggregates and self.aggregate_id(first) == aggregate_id else None

    def aggregate_id(self, ordinal: int) -> bytes:
        ends = self.columns["id_ends"]
        return self.columns["ids"][int(ends[ordinal]) : int(ends[ordinal + 1])].tobytes()

    def type_names(self) -> list[str]:
        """Event types in this file, by type ordinal."""
        ends, names = self.checked("type_ends").tolist(), self.checked("types").tobytes()
        return [names[a:b].decode() for a, b in itertools.pairwise(ends)]

    def with_prefix(self, prefix: bytes) -> tuple[int, int]:
        """The ordinals [first, last) of the aggregates whose id begins with `prefix`."""
        self.checked("id_ends")
        self.checked("ids")
        return self._bisect(prefix, 0, self.header.aggregates), self._bisect(prefix + b"\xff" * 256, 0, self.header.aggregates)

    def _bisect(self, aggregate_id: bytes, first: int, last: int) -> int:
        """The first ordinal in [first, last) whose id is not smaller, or `last`."""
        while first < last:
            middle = (first + last) // 2
            if self.aggregate_id(middle) < aggregate_id:
                first = middle + 1
            else:
                last = middle
        return first

    def rows_of(self, ordinal: int) -> tuple[int, int]:
        """The aggregate's rows [first, last)."""
        self._check_block(bisect_right(self._blocks, ordinal) - 1)
        first_row = self.columns["first_row"]
        return int(first_row[ordinal]), int(first_row[ordinal + 1])

    def ordinal_of(self, aggregate_id: bytes, first: int, last: int) -> int:
        """The ordinal of the aggregate that has the rows [first, last), whose ends are checked.

        Raises:
            Corrupt: it has not: the index or the directory is damaged.
        """
        if last <= self.header.rows:
            self.check_rows(first, first + 1)
            self.check_rows(last - 1, last)
            ordinal = int(self.columns["ordinal"][first])
            if self.rows_of(ordinal) == (first, last) and self.aggregate_id(ordinal) == aggregate_id:
                return ordinal
        raise Corrupt(self.name, 0, f"rows {first} to {last} are not those of {aggregate_id!r}; rebuild the directory")

    def version_at(self, row: int) -> int:
        self.check_rows(row, row + 1)
        return int(self._version[row])

    def check_rows(self, first: int, last: int) -> None:
        """Raises Corrupt unless what a look-up uses of the rows [first, last) is as it was written."""
        sound, end = self._sound_rows, row_groups(last)
        group = sound.find(0, first // ROWS_PER_CRC, end)
        while group >= 0:
            if row_crc(self.columns, group) != int(self.columns["row_crc"][group]):
                offset = self.header.columns["ordinal"][0]
                rows = f"rows {group * ROWS_PER_CRC} to {(group + 1) * ROWS_PER_CRC}"
                raise self._damaged(offset, f"the checksum of {rows} does not match")
            sound[group] = 1
            group = sound.find(0, group + 1, end)

    def extent(self, first: int, last: int) -> tuple[int, int]:
        """The bytes [start, stop) of the event file that hold the rows [first, last), whole commits."""
        return int(self._record[first]), int(self._record[last - 1]) + int(self._length[last - 1])

    def extent_crc(self, ordinal: int) -> int:
        return int(self.columns["extent_crc"][ordinal])

    def rows_between(self, first: int, last: int, from_version: int, to_version: int) -> tuple[int, int]:
        """Of an aggregate's rows [first, last), those with a version in [from_version, to_version]: versions have
        no gap.
        """
        base = int(self._version[first])
        low = max(first, first + from_version - base)
        return low, min(last, first + to_version - base + 1)

    def _first_rows(self, first: int, last: int) -> Column:
        """The first row of each commit among the rows [first, last), which begin with a commit."""
        records = self._record[first:last]
        starts = np.empty(last - first, bool)
        starts[0] = True
        np.not_equal(records[1:], records[:-1], out=starts[1:])
        return np.flatnonzero(starts) + first

    def commit_sequences(self, first: int, last: int) -> list[int]:
        """The sequence of each commit in the rows [first, last), which begin with a commit."""
        sequences: list[int] = self.columns["sequence"][self._first_rows(first, last)].tolist()
        return sequences

    def command_hashes(self, first: int, last: int) -> bytes:
        """8 bytes per commit of the rows [first, last), which begin with a commit.

        Raises:
            Corrupt
        """
        self.check_rows(first, last)
        hashes = self.columns["command"]
        return hashes[self._first_rows(first, last)].tobytes() if last - first > 1 else hashes[first:last].tobytes()

    def rows_with_command(self, first: int, last: int, hashed: int) -> list[int]:
        """The first row of each commit among the rows [first, last) whose command id has this hash.

        Raises:
            Corrupt
        """
        self.check_rows(first, last)
        hits = np.flatnonzero(self.columns["command"][first:last] == np.uint64(hashed)) + first
        rows: list[int] = hits.tolist()
        return [row for row in rows if row == first or self._record[row - 1] != self._record[row]]

    def commit_end(self, row: int) -> int:
        """The row behind the last event of the commit that the event in `row` belongs to."""
        return int(np.searchsorted(self._record, self._record[row], side="right"))

    def verify(self) -> None:
        """Checks every column against its checksum. Reads the whole index.

        Raises:
            Corrupt
        """
        for name in self.columns:
            self._sound_columns.discard(name)
            self.checked(name)

    def _check_block(self, block: int) -> None:
        if self._sound_blocks[block]:
            return
        first, last = self._blocks[block], self._blocks[block + 1]
        if block_crc(self.columns, first, last) != int(self.columns["block_crc"][block]):
            offset = self.header.columns["id_ends"][0]
            raise self._damaged(offset, f"block {block} of the aggregate table is damaged")
        self._sound_blocks[block] = 1

    def _damaged(self, offset: int, what: str) -> Corrupt:
        self._on_damage()
        return Corrupt(self.name, offset, f"{what}; a server builds the index again, `eventstore rebuild` does where none runs")


def open_index(files: Files, path: Path, on_damage: Callable[[], None] = lambda: None) -> EventIndex:
    file = files.open(path)
    try:
        return EventIndex(file, str(path), on_damage)
    finally:
        file.close()
