"""Reads a mapped event index: finds aggregates, their rows, versions and commands."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from eventstore.arrays import np
from eventstore.checksum import crc32c
from eventstore.chunks.files import File, Files
from eventstore.errors import Corrupt
from eventstore.store.sorted.command_hash import hash_with, tag_hash
from eventstore.store.sorted.index_columns import Column, mapped_columns, sources_of
from eventstore.store.sorted.index_format import (
    FORMAT,
    ROWS_PER_CRC,
    block_extents,
    blocks,
    crc_of,
    read_header,
    row_extents,
    row_groups,
)
from eventstore.tags import TAGGED

if TYPE_CHECKING:
    from eventstore.store.sorted.index_columns import Ints

_STEP: Final = 65_536  # rows at a time: numpy lets no other thread run meanwhile


class EventIndex:
    """A mapped index. Its columns are read in place; they are the same for all formats (see `index_columns`).

    Before an operation raises Corrupt because of the index, or if it finds it incomplete, it calls `on_damage`, on the caller's
    thread.
    """

    def __init__(self, file: File, name: str, on_damage: Callable[[], None] = lambda: None) -> None:
        self.header = read_header(file, name)
        self.name = name
        self._command_hash = hash_with(self.header.command_key)
        self._on_damage = on_damage
        self._map = file.map()
        self.columns = mapped_columns(self.header, self._map)
        self._record = self.columns["record"].item
        self._left = self.columns["left"].item
        self._place = self.columns["place"].item
        self._version = self.columns["version"].item
        self._id_end = self.columns["id_ends"].item
        self._first_row = self.columns["first_row"].item
        self._ids = self._map[self.header.columns["ids"].offset :]
        starts = blocks(self.header.aggregates)
        self._blocks = starts
        self._sound_blocks = bytearray(len(starts))
        self._sound_rows = bytearray(row_groups(self.header.columns))
        self._sound_columns: set[str] = set()
        self._tagged: Ints | None = None
        searched = () if self.header.format == FORMAT else ("record", "length")  # a commit's first row is found by bisection
        for column in ("split_ends", "split_ids", "block_crc", "row_crc", *searched):
            self.checked(column)
        ends = self.columns["split_ends"][:].tolist()
        split_ids = self.columns["split_ids"][:].tobytes()
        self._splits = [split_ids[a:b] for a, b in itertools.pairwise(ends)]

    def checked(self, name: str) -> Column:
        """Returns a whole column; verifies the checksums of the bytes that it is made of the first time.

        Raises:
            Corrupt
        """
        for source in sources_of(self.header, name):
            if source not in self._sound_columns:
                place = self.header.columns[source]
                if crc32c(self._map[place.offset : place.offset + place.size]) != place.crc:
                    raise self._damaged(place.offset, f"the checksum of column {source} does not match")
                self._sound_columns.add(source)
        return self.columns[name]

    def find(self, aggregate_id: bytes) -> int | None:
        """Returns the aggregate's ordinal in this file, or None.

        Raises:
            Corrupt: its block is damaged.
        """
        if not self.header.smallest <= aggregate_id <= self.header.largest:
            return None
        block = bisect_right(self._splits, aggregate_id) - 1
        first, last = self._blocks[block], self._blocks[block + 1]
        self._check_block(block)
        first = self._bisect(aggregate_id, first, last)
        return first if first < self.header.aggregates and self.aggregate_id(first) == aggregate_id else None

    def aggregate_id(self, ordinal: int) -> bytes:
        return bytes(self._ids[self._id_end(ordinal) : self._id_end(ordinal + 1)])

    def type_names(self) -> list[str]:
        """Returns the event types in this file, by type ordinal."""
        ends, names = self.checked("type_ends")[:].tolist(), self.checked("types")[:].tobytes()
        return [names[a:b].decode() for a, b in itertools.pairwise(ends)]

    def with_prefix(self, prefix: bytes) -> tuple[int, int]:
        """Returns the ordinals [first, last) of the aggregates whose id begins with `prefix`."""
        self.checked("id_ends")
        self.checked("ids")
        return self._bisect(prefix, 0, self.header.aggregates), self._bisect(prefix + b"\xff" * 256, 0, self.header.aggregates)

    def rows_with_prefix(self, prefix: bytes) -> tuple[int, int]:
        """Returns the rows [first, last) of the aggregates whose id begins with `prefix`."""
        first, last = self.with_prefix(prefix)
        self.checked("first_row")
        return self._first_row(first), self._first_row(last)

    def ids_from(self, low: bytes) -> Iterator[tuple[bytes, int]]:
        """Iterates over the ids that are not smaller than `low`, in order, with the version that the file leads each to.

        Raises:
            Corrupt
        """
        self.checked("id_ends")
        self.checked("ids")
        for ordinal in range(self._bisect(low, 0, self.header.aggregates), self.header.aggregates):
            yield self.aggregate_id(ordinal), self.version_at(self.rows_of(ordinal)[1] - 1)

    def _bisect(self, aggregate_id: bytes, first: int, last: int) -> int:
        """Returns the first ordinal in [first, last) whose id is not smaller, or `last`."""
        while first < last:
            middle = (first + last) // 2
            if self.aggregate_id(middle) < aggregate_id:
                first = middle + 1
            else:
                last = middle
        return first

    def rows_of(self, ordinal: int) -> tuple[int, int]:
        """Returns the aggregate's rows [first, last)."""
        self._check_block(bisect_right(self._blocks, ordinal) - 1)
        return self._first_row(ordinal), self._first_row(ordinal + 1)

    def ordinal_of(self, aggregate_id: bytes, first: int, last: int) -> int:
        """Returns the ordinal of the aggregate, which must have exactly the rows [first, last).

        Raises:
            Corrupt: it has other rows: the index or the directory is damaged.
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
        return self._version(row)

    def check_rows(self, first: int, last: int) -> None:
        """Raises Corrupt unless the rows [first, last) match their checksums, in the columns that a lookup uses."""
        sound, end = self._sound_rows, (last - 1) // ROWS_PER_CRC + 1
        group = sound.find(0, first // ROWS_PER_CRC, end)
        while group >= 0:
            if crc_of(self._map, row_extents(self.header.columns, group)) != int(self.columns["row_crc"][group]):
                offset = self.header.columns["ordinal"].offset
                rows = f"rows {group * ROWS_PER_CRC} to {(group + 1) * ROWS_PER_CRC}"
                raise self._damaged(offset, f"the checksum of {rows} does not match")
            sound[group] = 1
            group = sound.find(0, group + 1, end)

    def extent(self, first: int, last: int) -> tuple[int, int]:
        """Returns the bytes [start, stop) of the event file that hold the rows [first, last), as whole commits.

        Raises:
            Corrupt
        """
        end = self.commit_end(last - 1)
        self.check_rows(end, end + 1)
        return self._record(first), self._record(end)

    def extent_crc(self, ordinal: int) -> int:
        return int(self.columns["extent_crc"][ordinal])

    def rows_between(self, first: int, last: int, from_version: int, to_version: int) -> tuple[int, int]:
        """Narrows an aggregate's rows [first, last) to the versions [from_version, to_version], which have no gap."""
        base = self._version(first)
        low = max(first, first + from_version - base)
        return low, min(last, first + to_version - base + 1)

    def _first_rows(self, first: int, last: int) -> Ints:
        """Returns the first row of each commit in the rows [first, last), which begin with a commit."""
        return np.flatnonzero(self.columns["place"][first:last] == 0) + first

    def commit_sequences(self, first: int, last: int) -> list[int]:
        """Returns the sequence of each commit in the rows [first, last), which begin with a commit."""
        sequence = self.columns["sequence"]
        return [sequence.item(first)] if last - first == 1 else sequence.take(self._first_rows(first, last)).tolist()

    def command_hashes(self, first: int, last: int) -> bytes:
        """Returns 8 bytes per commit in the rows [first, last), which begin with a commit.

        Raises:
            Corrupt
        """
        self.check_rows(first, last)
        hashes = self.columns["command"]
        return hashes.take(self._first_rows(first, last)).tobytes() if last - first > 1 else hashes[first:last].tobytes()

    def grouped_command_hashes(self, rows: Ints) -> tuple[bytes, Ints]:
        """Returns 8 bytes per commit in the rows [rows[0], rows[-1]), and how many commits are before each of `rows`, which
        all begin a commit or end the last one.

        Raises:
            Corrupt
        """
        first, last = int(rows[0]), int(rows[-1])
        self.check_rows(first, last)
        starts = self._first_rows(first, last)
        return self.columns["command"][starts].tobytes(), np.searchsorted(starts, rows)

    def rows_with_command(self, first: int, last: int, command_id: bytes) -> list[int]:
        """Returns the first row of each commit in the rows [first, last) whose command id has the hash of this one.

        Raises:
            Corrupt
        """
        self.check_rows(first, last)
        hashed = np.frombuffer(self._command_hash(command_id), "<u8")
        hits = np.flatnonzero(self.columns["command"][first:last] == hashed) + first
        rows: list[int] = hits.tolist()
        return [row for row in rows if self._place(row) == 0]

    def rows_with_tags(self, tags: Sequence[str]) -> Ints:
        """Returns the rows of the events that have all of these tags, ascending; others whose tags have the same hashes may be
        among them. Of an index that lacks the columns of tags, all events with tags; it is reported to be built again.

        Raises:
            Corrupt
        """
        if "tag_hash" not in self.columns:
            return self._tagged_rows()
        hashes, ends, rows = (self.checked(name) for name in ("tag_hash", "tag_ends", "tag_rows"))
        found: Ints | None = None
        for tag in tags:
            wanted = tag_hash(self._command_hash, tag)
            place = int(np.searchsorted(cast("Ints", hashes), np.uint32(wanted)))
            if place == len(hashes) or hashes.item(place) != wanted:
                return np.zeros(0, np.int64)
            own = rows[ends.item(place) : ends.item(place + 1)]
            found = own if found is None else np.intersect1d(found, own, assume_unique=True)
        assert found is not None, "an item that is looked up has tags"
        return found.astype(np.int64)

    def _tagged_rows(self) -> Ints:
        """Returns the rows of the events that have tags, by their format, for an index without the columns of tags: there are
        none, unless a program sorted the file that knew its format, but not tags yet.
        """
        if self._tagged is None:
            formats, steps = self.checked("format"), range(0, self.header.rows, _STEP)
            parts = [np.flatnonzero(formats[first : first + _STEP] & TAGGED) + first for first in steps]
            self._tagged = np.concatenate(parts) if parts else np.zeros(0, np.int64)
            if len(self._tagged):
                self._on_damage()
        return self._tagged

    def commit_begin(self, row: int) -> int:
        """Returns the row of the first event of the commit in `row`."""
        return row - self._place(row)

    def commit_end(self, row: int) -> int:
        """Returns the row after the last event of the commit in `row`."""
        return row + 1 + self._left(row)

    def verify(self) -> None:
        """Reads the whole index and checks every column against its checksum.

        Raises:
            Corrupt
        """
        self._sound_columns.clear()
        for name in self.columns:
            self.checked(name)

    def _check_block(self, block: int) -> None:
        if self._sound_blocks[block]:
            return
        first, last = self._blocks[block], self._blocks[block + 1]
        ids = self._id_end(first), self._id_end(last)
        if crc_of(self._map, block_extents(self.header.columns, first, last, ids)) != int(self.columns["block_crc"][block]):
            offset = self.header.columns["id_ends"].offset
            raise self._damaged(offset, f"block {block} of the aggregate table is damaged")
        self._sound_blocks[block] = 1

    def _damaged(self, offset: int, what: str) -> Corrupt:
        self._on_damage()
        return Corrupt(self.name, offset, f"{what}; a running server rebuilds the index; without one, run `eventstore rebuild`")


def open_index(files: Files, path: Path, on_damage: Callable[[], None] = lambda: None) -> EventIndex:
    file = files.open(path)
    try:
        return EventIndex(file, str(path), on_damage)
    finally:
        file.close()
