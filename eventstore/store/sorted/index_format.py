"""The format of an event index, which accompanies a sorted event file: columns, mapped on first use.

    0 .. 4096       header: which event file it belongs to, smallest and largest aggregate id, directory of the columns
    then            the columns, each at a multiple of 64 bytes, each with a CRC-32C in the directory

Rows are events in the file's order: by (aggregate id, version). Most columns of rows are narrow (see `narrow_column`):
`ordinal` (of the aggregate), `version`, `sequence`, `time`, `type` (ordinal), `record` (where the commit record begins; one
item more than rows: where the last one ends), `place` (of the event in its commit), `left` (events of the commit after it),
`data_at` (where the payload begins, from the beginning of its record), `data_len`, `meta_size` (1 more than the length of the
metadata; 0: none) and `format`; `command` (hash of the command id) is not. Tables: `first_row` and `extent_crc` (of all bytes
of the aggregate), `id_ends` + `ids`, `type_ends` + `types`; `split_ends` + `split_ids` + `block_crc`: the aggregates are
divided into up to 100 blocks of equal count; the first id of each, and a CRC over the block's part of the tables. `row_crc`:
for every 1024 rows, a CRC over the columns that a lookup uses. `frames` and `id_frames` belong to the narrow columns.

Only if events of the file have tags: `tag_hash` (the hashes of the tags, ascending), `tag_rows` (the rows of the events that
have the first of them, ascending, then those of the second, and so on), `tag_ends` (where in `tag_rows` each begins, and one
item more) and `tag_frames`. Tags of one hash share their rows: the record decides.

A lookup touches one block: smallest/largest, then a bisect in the splits, the block's CRC once, a bisect in the block, and the
CRC of the rows it finds. It uses no bytes that were not checked: a flipped bit would otherwise read as "not found".

Indexes of the formats 1 and 2, which older programs wrote, are read as well: `WIDE` lists their columns, of fixed widths.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eventstore.arrays import np, npt
from eventstore.checksum import crc32c
from eventstore.chunks.files import File, Files
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.layout import FieldLayout
from eventstore.errors import Corrupt
from eventstore.store.sorted.command_hash import KEY_BYTES, NO_KEY
from eventstore.store.sorted.narrow_column import GROUP, PackedColumn, groups_of, planes_of

MAGIC: Final = b"EVTINDEX"
FORMAT: Final = 3
"""Of an index with narrow columns, the only one that is written."""
WIDE_FORMATS: Final = (1, 2)
"""Of an index with columns of a fixed width, as older programs wrote it. In format 1 the hashes of command ids have no key."""
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
ROWS_PER_CRC: Final = GROUP
NARROW: Final = "N"
"""The dtype of a narrow column is this and its width in bytes, 0 to 8."""

NARROW_ROWS: Final = (
    "ordinal",
    "version",
    "sequence",
    "time",
    "type",
    "record",
    "place",
    "left",
    "data_at",
    "data_len",
    "meta_size",
    "format",
)
"""In this order, their frames follow each other in `frames`."""
NARROW_TABLES: Final = ("first_row", "id_ends")
"""The same for `id_frames`."""
COLUMNS: Final = {
    **dict.fromkeys(NARROW_ROWS, NARROW),
    "command": "<u8",
    "frames": "<i8",
    **dict.fromkeys(NARROW_TABLES, NARROW),
    "id_frames": "<i8",
    "extent_crc": "<u4",
    "ids": "|u1",
    "type_ends": "<u4",
    "types": "|u1",
    "split_ends": "<u4",
    "split_ids": "|u1",
    "block_crc": "<u4",
    "row_crc": "<u4",
}
NARROW_TAGS: Final = ("tag_ends", "tag_rows")
"""The same for `tag_frames`."""
TAG_COLUMNS: Final = {"tag_hash": "<u4", **dict.fromkeys(NARROW_TAGS, NARROW), "tag_frames": "<i8"}
"""All or none of these are there."""
LOOKED_UP: Final = ("ordinal", "version", "sequence", "record", "place", "left", "command")

WIDE: Final = {
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
WIDE_LOOKED_UP: Final = ("ordinal", "version", "sequence", "command", "record", "length")

Columns = dict[str, "npt.NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class ColumnPlace:
    """Where a column lies in the index, in bytes, and the CRC of its bytes without the padding after it."""

    dtype: str
    offset: int
    items: int
    crc: int

    @property
    def planes(self) -> list[int]:
        """Returns the bytes of an item in each plane: a column that is not narrow has one."""
        return planes_of(int(self.dtype[1:])) if self.dtype[0] == NARROW else [int(self.dtype[2:])]

    @property
    def size(self) -> int:
        return self.items * sum(self.planes)

    def extents(self, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the bytes [start, stop) of the index that hold the items [first, last): one range for each plane."""
        first, last, found, start = min(first, self.items), min(last, self.items), [], self.offset
        for size in self.planes:
            found.append((start + first * size, start + last * size))
            start += self.items * size
        return found


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 4096 bytes of an index, enough to find out whether an aggregate may be in its file.

    Attributes:
        command_key: the secret key of its hashes of command ids; `NO_KEY` in an index of format 1.
    """

    format: int
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
    columns: dict[str, ColumnPlace]
    command_key: bytes

    def belongs_to(self, header: ChunkHeader) -> bool:
        """Returns whether this is the index of exactly this event file."""
        mine = (self.number, self.store, self.first_sequence, self.checksum, self.end)
        return mine == (header.number, header.store, header.first_sequence, header.checksum, header.end)


def blocks(aggregates: int) -> list[int]:
    """Returns the ordinals at which the blocks begin, and the end of the last."""
    count = min(BLOCKS_MAX, aggregates)
    return [place * aggregates // count for place in range(count + 1)] if count else [0]


def crc_of(index: memoryview, extents: list[tuple[int, int]]) -> int:
    """Returns the CRC of these bytes of an index, one after the other."""
    crc = 0
    for start, stop in extents:
        crc = crc32c(index[start:stop], crc)
    return crc


def block_extents(columns: dict[str, ColumnPlace], first: int, last: int, ids: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the bytes of the tables for the aggregates [first, last), whose ids are these bytes of the column `ids`."""
    frames = columns.get("id_frames")
    found = [] if frames is None else _frames(frames, len(NARROW_TABLES), first // GROUP, last // GROUP + 1)
    for name, stop in (("id_ends", last + 1), ("first_row", last + 1), ("extent_crc", last)):
        found += columns[name].extents(first, stop)
    return found + columns["ids"].extents(*ids)


def row_extents(columns: dict[str, ColumnPlace], group: int) -> list[tuple[int, int]]:
    """Returns the bytes of one group of rows, in the columns that a lookup uses."""
    frames = columns.get("frames")
    found = [] if frames is None else _frames(frames, len(NARROW_ROWS), group, group + 1)
    for name in WIDE_LOOKED_UP if frames is None else LOOKED_UP:
        found += columns[name].extents(group * ROWS_PER_CRC, (group + 1) * ROWS_PER_CRC)
    return found


def _frames(place: ColumnPlace, columns: int, first: int, last: int) -> list[tuple[int, int]]:
    return place.extents(2 * columns * first, 2 * columns * last)


def row_groups(columns: dict[str, ColumnPlace]) -> int:
    """Returns how many groups of rows there are, each with a CRC."""
    return groups_of(columns["record"].items)


def write_index(files: Files, path: Path, chunk: ChunkHeader, columns: Columns, command_key: bytes) -> None:
    """Writes and syncs the index of `chunk` to `path`, which must not exist.

    Args:
        columns: all of `COLUMNS` but the frames and the checksums, which follow from them; of `TAG_COLUMNS` as well, if some
            events have tags.
        command_key: of the column `command`.
    """
    rows, aggregates = len(columns["ordinal"]), len(columns["first_row"]) - 1
    ids, ends = columns["ids"], columns["id_ends"]
    image = _Image()
    frames = [image.add_narrow(name, columns[name], rows + 1) for name in NARROW_ROWS]
    image.add("command", columns["command"])
    image.add("frames", np.stack(frames, 1).ravel())
    frames = [image.add_narrow(name, columns[name], aggregates + 1) for name in NARROW_TABLES]
    image.add("id_frames", np.stack(frames, 1).ravel())
    for name in ("extent_crc", "ids", "type_ends", "types", "split_ends", "split_ids"):
        image.add(name, columns[name])
    if "tag_hash" in columns:
        image.add("tag_hash", columns["tag_hash"])
        items = max(len(columns[name]) for name in NARROW_TAGS)
        frames = [image.add_narrow(name, columns[name], items) for name in NARROW_TAGS]
        image.add("tag_frames", np.stack(frames, 1).ravel())
    data = image.bytes()
    edges = itertools.pairwise(blocks(aggregates))
    crcs = [crc_of(data, block_extents(image.columns, a, b, (int(ends[a]), int(ends[b])))) for a, b in edges]
    image.add("block_crc", np.array(crcs))
    crcs = [crc_of(data, row_extents(image.columns, group)) for group in range(row_groups(image.columns))]
    image.add("row_crc", np.array(crcs))
    smallest, largest = bytes(ids[: int(ends[1])].data), bytes(ids[int(ends[-2]) :].data)
    fixed = HEADER.struct.pack(
        MAGIC,
        FORMAT,
        len(image.columns),
        HEADER_BYTES,
        chunk.number,
        chunk.store.bytes,
        chunk.first_sequence,
        rows,
        aggregates,
        len(columns["type_ends"]) - 1,
        chunk.checksum,
        chunk.end,
        image.end,
    )
    entries = [
        ENTRY.struct.pack(name.encode(), place.dtype.encode(), place.offset, place.items, place.crc)
        for name, place in image.columns.items()
    ]
    names = bytes((len(smallest),)) + smallest + bytes((len(largest),)) + largest
    head = (fixed + b"".join(entries)).ljust(COMMAND_KEY_AT, b"\0") + command_key.ljust(KEY_BYTES, b"\0") + names
    head = head.ljust(HEADER_BYTES - 4, b"\0")
    file = files.open(path, create=True)
    try:
        file.write_at(0, [head + crc32c(head).to_bytes(4, "little"), *image.buffers])
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
    if format_ not in (*WIDE_FORMATS, FORMAT) or file.size() != size:
        what = f"expected format {WIDE_FORMATS[0]} to {FORMAT} and {size} bytes"
        raise Corrupt(name, 0, f"format {format_} and {file.size()} bytes, {what}")
    columns = {}
    for entry in range(count):
        column, dtype, *rest = ENTRY.struct.unpack_from(raw, HEADER.size + entry * ENTRY.size)
        columns[column.rstrip(b"\0").decode()] = ColumnPlace(dtype.rstrip(b"\0").decode(), *rest)
    if missing := (COLUMNS if format_ == FORMAT else WIDE).keys() - columns.keys():
        raise Corrupt(name, 0, f"column {min(missing)} is missing; rebuild the index")
    split = IDS_AT + 1 + raw[IDS_AT]
    smallest, largest = raw[IDS_AT + 1 : split], raw[split + 1 : split + 1 + raw[split]]
    key = raw[COMMAND_KEY_AT:IDS_AT]
    return IndexHeader(
        format_,
        number,
        uuid.UUID(bytes=store),
        first,
        rows,
        aggregates,
        types,
        checksum,
        end,
        smallest,
        largest,
        columns,
        key if any(key) else NO_KEY,
    )


_DTYPES: Final = COLUMNS | TAG_COLUMNS


class _Image:
    """The columns of an index as bytes, as far as they were added."""

    def __init__(self) -> None:
        self.columns: dict[str, ColumnPlace] = {}
        self.buffers: list[bytes] = []
        self.end = HEADER_BYTES

    def add(self, name: str, column: npt.NDArray[Any]) -> None:
        dtype = _DTYPES[name]
        self._add(name, dtype, len(column), [np.ascontiguousarray(column, dtype).tobytes()])

    def add_narrow(self, name: str, column: npt.NDArray[Any], items: int) -> npt.NDArray[np.int64]:
        """Adds the planes of a column. Returns its frames; zeros up to the number that `items` take."""
        packed = PackedColumn(column)
        self._add(name, f"{NARROW}{packed.width}", len(column), packed.planes)
        return np.pad(packed.frames, ((0, groups_of(items) - len(packed.frames)), (0, 0)))

    def _add(self, name: str, dtype: str, items: int, planes: list[bytes]) -> None:
        crc = 0
        for plane in planes:
            crc = crc32c(plane, crc)
        self.columns[name] = place = ColumnPlace(dtype, self.end, items, crc)
        self.buffers += [*planes, bytes(-place.size % ALIGN)]
        self.end += place.size + -place.size % ALIGN

    def bytes(self) -> memoryview:
        """Returns what was added so far, at its place in the file; zeros where the header is."""
        return memoryview(b"".join([bytes(HEADER_BYTES), *self.buffers]))
