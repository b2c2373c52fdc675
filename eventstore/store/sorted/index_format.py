"""The format of an event index, which accompanies a sorted event file: columns of fixed width, mapped on first use.

    0 .. 4096       header: which event file it belongs to, smallest and largest aggregate id, directory of the columns
    then            the columns, each at a multiple of 64 bytes, each with a CRC-32C in the directory

Rows are events in the file's order: by (aggregate id, version). Columns of rows: `ordinal` (of the aggregate),
`version`, `sequence`, `time`, `type` (ordinal), `command` (hash of the command id), `record`, `length` (where the
commit record begins and its size), `data`, `data_len`, `meta`, `meta_len` (payloads within the file; meta is 0 for
none), `format`. `permutation`: row of the event with sequence first + i, which keeps the commit order. Tables:
`first_row` and `extent_crc` (of all bytes of the aggregate), `id_ends` + `ids`, `type_ends` + `types`; `split_ends` +
`split_ids` + `block_crc`: the aggregates are divided into up to 100 blocks of equal count; the first id of each, and a CRC
over the block's part of the tables. `row_crc`: for every 1024 rows, a CRC over the columns that a lookup uses.

A lookup touches one block: smallest/largest, then a bisect in the splits, the block's CRC once, a bisect in the block, and the
CRC of the rows it finds. It uses no bytes that were not checked: a flipped bit would otherwise read as "not found".
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from crc32c import crc32c

from eventstore.arrays import np, npt
from eventstore.chunks.files import File, Files
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.layout import FieldLayout
from eventstore.errors import Corrupt
from eventstore.store.sorted.command_hash import KEY_BYTES, NO_KEY

MAGIC: Final = b"EVTINDEX"
FORMAT: Final = 2
"""Of an index whose hashes have a key. An index without a key is of format 1, as an older program wrote it."""
UNKEYED_FORMAT: Final = 1
HEADER_BYTES: Final = 4096
HEADER: Final = FieldLayout(
    ("magic", "8s"),
    ("format", "H"),
    ("columns", "H"),
    ("header_bytes", "I"),
    ("number", "Q"),
    ("store", "16s"),
    ("first_sequence", "Q"),
    ("rows", "Q"),
    ("aggregates", "I"),
    ("types", "I"),
    ("checksum", "Q"),
    ("end", "Q"),
    ("size", "Q"),
)
ENTRY: Final = FieldLayout(("name", "12s"), ("dtype", "4s"), ("offset", "Q"), ("items", "I"), ("crc", "I"))
COMMAND_KEY_AT: Final = 3056
IDS_AT: Final = 3072
ALIGN: Final = 64
BLOCKS_MAX: Final = 100
ROWS_PER_CRC: Final = 1024

ROWS: Final = {
    "ordinal": "<u4",
    "version": "<u8",
    "sequence": "<u8",
    "time": "<i8",
    "type": "<u4",
    "command": "<u8",
    "record": "<u4",
    "length": "<u4",
    "data": "<u4",
    "data_len": "<u4",
    "meta": "<u4",
    "meta_len": "<u4",
    "format": "|u1",
}
TABLES: Final = {
    "permutation": "<u4",
    "first_row": "<u4",
    "extent_crc": "<u4",
    "id_ends": "<u4",
    "ids": "|u1",
    "type_ends": "<u4",
    "types": "|u1",
    "split_ends": "<u4",
    "split_ids": "|u1",
    "block_crc": "<u4",
    "row_crc": "<u4",
}
COLUMNS: Final = {**ROWS, **TABLES}
LOOKED_UP: Final = ("ordinal", "version", "sequence", "command", "record", "length")

Column: TypeAlias = "npt.NDArray[np.generic]"
Columns = dict[str, "npt.NDArray[np.generic]"]


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 4096 bytes of an index, enough to find out whether an aggregate may be in its file.

    Attributes:
        command_key: the secret key of its hashes of command ids; `NO_KEY` in an index of format 1.
    """

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
    command_key: bytes

    def belongs_to(self, header: ChunkHeader) -> bool:
        """Returns whether this is the index of exactly this event file."""
        mine = (self.number, self.store, self.first_sequence, self.checksum, self.end)
        return mine == (header.number, header.store, header.first_sequence, header.checksum, header.end)


def blocks(aggregates: int) -> list[int]:
    """Returns the ordinals at which the blocks begin, and the end of the last."""
    count = min(BLOCKS_MAX, aggregates)
    return [place * aggregates // count for place in range(count + 1)] if count else [0]


def block_crc(columns: Columns, first: int, last: int) -> int:
    """Returns the checksum of the tables' part for the aggregates [first, last)."""
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
    """Returns the checksum of one group of rows, over the columns that a lookup uses."""
    crc = 0
    for name in LOOKED_UP:
        part = columns[name][group * ROWS_PER_CRC : (group + 1) * ROWS_PER_CRC]
        crc = crc32c(np.ascontiguousarray(part).view(np.uint8).data, crc)
    return crc


def row_groups(rows: int) -> int:
    return -(-rows // ROWS_PER_CRC)


def write_index(files: Files, path: Path, chunk: ChunkHeader, columns: Columns, command_key: bytes) -> None:
    """Writes and syncs the index of `chunk` to `path`, which must not exist. `command_key`: of the column `command`."""
    ids, ends = columns["ids"], columns["id_ends"]
    smallest, largest = bytes(ids[: int(ends[1])].data), bytes(ids[int(ends[-2]) :].data)
    entries, buffers, position = [], [], HEADER_BYTES
    for name, dtype in COLUMNS.items():
        raw = np.ascontiguousarray(columns[name], dtype=dtype).view(np.uint8).tobytes()
        entries.append(ENTRY.struct.pack(name.encode(), dtype.encode(), position, len(columns[name]), crc32c(raw)))
        padding = -len(raw) % ALIGN
        buffers += [raw, bytes(padding)]
        position += len(raw) + padding
    format_ = FORMAT if command_key else UNKEYED_FORMAT
    fixed = HEADER.struct.pack(
        MAGIC,
        format_,
        len(entries),
        HEADER_BYTES,
        chunk.number,
        chunk.store.bytes,
        chunk.first_sequence,
        len(columns["ordinal"]),
        len(ends) - 1,
        len(columns["type_ends"]) - 1,
        chunk.checksum,
        chunk.end,
        position,
    )
    names = bytes((len(smallest),)) + smallest + bytes((len(largest),)) + largest
    head = (fixed + b"".join(entries)).ljust(COMMAND_KEY_AT, b"\0") + command_key.ljust(KEY_BYTES, b"\0") + names
    head = head.ljust(HEADER_BYTES - 4, b"\0")
    file = files.open(path, create=True)
    try:
        file.write_at(0, [head + crc32c(head).to_bytes(4, "little"), *buffers])
        file.sync()
    finally:
        file.close()


def read_header(file: File, name: str) -> IndexHeader:
    """Reads the header of an index.

    Raises:
        Corrupt: it is damaged or has another format; the index has to be rebuilt.
    """
    raw = file.read_at(0, HEADER_BYTES)
    if len(raw) < HEADER_BYTES or raw[:8] != MAGIC:
        raise Corrupt(name, 0, "this is not an event index")
    if crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise Corrupt(name, 0, "the checksum of the index header does not match")
    (_, format_, count, _, number, store, first, rows, aggregates, types, checksum, end, size) = HEADER.struct.unpack_from(raw)
    if format_ not in (UNKEYED_FORMAT, FORMAT) or file.size() != size:
        what = f"expected format {UNKEYED_FORMAT} or {FORMAT} and {size} bytes"
        raise Corrupt(name, 0, f"format {format_} and {file.size()} bytes, {what}")
    columns = {}
    for place in range(count):
        entry, _, offset, items, crc = ENTRY.struct.unpack_from(raw, HEADER.size + place * ENTRY.size)
        columns[entry.rstrip(b"\0").decode()] = (offset, items, crc)
    if missing := COLUMNS.keys() - columns.keys():
        raise Corrupt(name, 0, f"column {min(missing)} is missing; rebuild the index")
    split = IDS_AT + 1 + raw[IDS_AT]
    smallest, largest = raw[IDS_AT + 1 : split], raw[split + 1 : split + 1 + raw[split]]
    key = raw[COMMAND_KEY_AT:IDS_AT] if format_ == FORMAT else NO_KEY
    return IndexHeader(
        number, uuid.UUID(bytes=store), first, rows, aggregates, types, checksum, end, smallest, largest, columns, key
    )
