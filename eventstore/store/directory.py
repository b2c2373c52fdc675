"""The directory: aggregate id → its version and where its events are in the sorted files. An LMDB environment off the
Python heap.

    key    aggregate id (1–255 bytes)
    value  CRC-32C of the key and of the rest (4) | version (8) | per sorted file, oldest first: file number (4), first
    row (4), rows (4)

Derived data: it is written in one transaction per sorted file, after that file was switched, and says in a second
table which files it covers. So it may lag behind the log, never run ahead, and when anything about it is in doubt it
is wiped and built again from the indexes. Never opened with `writemap` (a full disk would be a SIGBUS).

"There is no such aggregate" is the answer that must not be wrong: the aggregate would begin again at version 1. LMDB has no
checksums, and a key in which a bit rots is simply not found any more. But a search that goes wrong because of one damaged
key ends beside that key, or at the edge of a leaf it does not belong to. So the neighbours of a missing key are looked at:
both must be sound, and the key must lie between them. What that does not find is damage to what lies around the keys (a
page number in a branch that leads to another sound page). When a file is added, its aggregates must go on at the version
the directory has for them, or begin at 1: whatever was overlooked comes out there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb
from crc32c import crc32c

from eventstore.errors import Corrupt, StorageFull
from eventstore.store.index import EventIndex

_VALUE = struct.Struct("<IQ")
_SEGMENT = struct.Struct("<III")
_FILE = struct.Struct("<QQ")
_MAP_BYTES: Final = 64 * 1024**3  # address space, not memory; doubled where it is too small all the same
_CHUNK_KEYS: Final = 20_000
_READ_AHEAD_BYTES: Final = 1024 * 1024
AGGREGATES: Final = b"aggregates-2"  # as it is laid out since values vouch for their keys
FILES: Final = b"files-2"
DAMAGED_MARK: Final = "damaged"
_SHORT_WRITE: Final = "Input/output error"  # what LMDB makes of a write that a full disk took only a part of
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The rows [first, first + rows) of a sorted file."""

    file: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What the sorted files hold of one aggregate."""

    version: int
    places: tuple[Place, ...]


_NOTHING: Final = Entry(0, ())


class Directory:
    """One environment. Any number of readers; one writer at a time, in this or in another process.

    Raises:
        Corrupt: it cannot be opened as it is; wipe and rebuild. StorageFull.
    """

    def __init__(self, path: Path, map_bytes: int = _MAP_BYTES) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._map_bytes = map_bytes
        self.proven = True  # or it was opened after an unclean stop, and not read whole since
        self.distrusted: str | None = None
        self._open()

    def _open(self) -> None:
        try:
            self._env = lmdb.open(
                str(self.path), map_size=self._map_bytes, max_dbs=2, max_readers=256, meminit=False, readahead=False
            )
        except lmdb.Error as error:
            raise self._translated(error) from error
        try:
            self._check_size()
            self._check_layout()
            with self._env.begin(write=True) as txn:  # a new directory is synced once, and has both tables or none
                self._aggregates = self._env.open_db(AGGREGATES, txn=txn)
                self._files = self._env.open_db(FILES, txn=txn)
        except lmdb.Error as error:
            self._env.close()
            raise self._translated(error) from error
        except Corrupt:
            self._env.close()
            raise

    def _check_size(self) -> None:
        """LMDB maps what its first pages speak of; touching what is not there would be a SIGBUS."""
        pages, size = self._env.info()["last_pgno"] + 1, (self.path / "data.mdb").stat().st_size
        if size < pages * self._env.stat()["psize"]:
            raise Corrupt(str(self.path / "data.mdb"), size, f"the file ends here, though it has {pages} pages")

    def _check_layout(self) -> None:
        with self._env.begin() as txn:
            if other := {bytes(name) for name in txn.cursor().iternext(values=False)} - {AGGREGATES, FILES}:
                raise Corrupt(str(self.path), 0, f"it has another layout than this program's ({min(other)!r})")

    def close(self) -> None:
        self._env.close()

    def distrust(self, error: Corrupt) -> None:
        """It is damaged: said once, and the next start builds it again. Until then the indexes answer in its place."""
        if self.distrusted is None:
            self.distrusted = str(error.fields["what"])
            _log.error("%s; the indexes are asked instead, and the next start builds the directory again", error)
            with contextlib.suppress(OSError):  # then it is met again
                (self.path / DAMAGED_MARK).touch()

    @property
    def attention(self) -> str | None:
        """What an operator has to know of it, if anything."""
        if self.distrusted is None:
            return None
        return (
            f"the directory {self.path} is damaged ({self.distrusted}): the indexes answer in its place, which takes longer. "
            "The next start builds it again"
        )

    def covered(self) -> dict[int, tuple[int, int]]:
        """File number → (checksum, end) of each sorted file that is in the directory."""
        try:
            with self._begin() as txn:
                cursor = txn.cursor(self._files)
                return {int.from_bytes(key, "big"): _FILE.unpack(value) for key, value in cursor}
        except (lmdb.Error, struct.error) as error:
            raise self._translated(error) from error

    def get(self, aggregate_id: bytes) -> Entry | None:
        """What is in the sorted files.

        Raises:
            Corrupt: the value is damaged, or a key near it; the indexes know better.
        """
        try:
            with self._begin() as txn:
                raw = txn.get(aggregate_id, db=self._aggregates)
                if raw is not None:
                    return self._decode(aggregate_id, raw)
                self._check_absent(txn.cursor(self._aggregates), aggregate_id)
                return None
        except lmdb.Error as error:
            raise self._translated(error) from error

    def _check_absent(self, cursor: lmdb.Cursor, aggregate_id: bytes) -> None:
        """Raises Corrupt unless the key lies between two sound neighbours, or behind the last or before the first."""
        between = True
        if cursor.set_range(aggregate_id):
            between, has_before = self._checked(*cursor.item()) > aggregate_id, cursor.prev()
        else:
            has_before = cursor.last()
        if has_before:
            between = self._checked(*cursor.item()) < aggregate_id and between
        if not between:
            raise Corrupt(str(self.path), 0, f"keys are out of order where {aggregate_id!r} belongs")

    def get_many(self, aggregate_ids: Iterable[bytes]) -> dict[bytes, Entry]:
        """The entries of those that exist: one pass of a cursor, half the cost per id of `get` when there are many.

        Raises:
            Corrupt: as `get`, of any of them.
        """
        wanted = sorted(aggregate_ids)
        try:
            with self._begin() as txn:
                cursor = txn.cursor(self._aggregates)
                found = {bytes(key): self._decode(key, raw) for key, raw in cursor.getmulti(wanted)}
                for aggregate_id in wanted:
                    if aggregate_id not in found:
                        self._check_absent(cursor, aggregate_id)
                return found
        except lmdb.Error as error:
            raise self._translated(error) from error

    def count(self) -> int:
        try:
            with self._begin() as txn:
                return int(txn.stat(self._aggregates)["entries"])
        except lmdb.Error as error:
            raise self._translated(error) from error

    def touch(self) -> None:
        """Reads what every use of it begins with: the roots, and the way to the first and the last key.

        Raises:
            Corrupt
        """
        self.covered()
        try:
            with self._begin() as txn:
                cursor = txn.cursor(self._aggregates)
                for found in (cursor.first(), cursor.last()):
                    if found:
                        self._checked(*cursor.item())
        except lmdb.Error as error:
            raise self._translated(error) from error

    def probe(self) -> None:
        """Visits every page; a damaged environment fails or kills the process here. Values are checked when they are read.

        Read once from front to back before, because the pages are visited in the order of keys: 2 s a GB instead of 15.

        Raises:
            Corrupt
        """
        try:
            with open(self.path / "data.mdb", "rb", buffering=0) as file:
                while file.read(_READ_AHEAD_BYTES):
                    pass
            with open(os.devnull, "wb") as nowhere:
                self._env.copyfd(nowhere.fileno(), compact=True)
        except lmdb.Error as error:
            raise self._translated(error) from error
        self.covered()

    def check(self) -> None:
        """Checks every entry, and that keys are in order; about 2 s for each million.

        Raises:
            Corrupt
        """
        before = b""
        try:
            with self._begin() as txn:
                for key, value in txn.cursor(self._aggregates):
                    checked = self._checked(key, value)
                    if checked <= before:
                        raise Corrupt(str(self.path), 0, f"keys are out of order: {checked!r} behind {before!r}")
                    before = checked
        except lmdb.Error as error:
            raise self._translated(error) from error

    def add_file(self, index: EventIndex) -> None:
        """Adds what a sorted file holds. Doing it again changes nothing.

        Raises:
            StorageFull: nothing was changed.
            Corrupt: this directory or the index is damaged; nothing was changed.
        """
        header = index.header
        if self.covered().get(header.number) == (header.checksum, header.end):
            return
        for column in ("first_row", "id_ends", "ids", "version"):
            index.checked(column)
        while True:
            try:
                self._env.reader_check()  # readers that were killed would pin pages for ever
                with self._env.begin(write=True) as txn:
                    key = header.number.to_bytes(4, "big")
                    if txn.get(key, db=self._files) is not None:
                        return  # another process has added it since
                    for group in _groups(index):
                        self._add(txn, header.number, group)
                    txn.put(key, _FILE.pack(header.checksum, header.end), db=self._files)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.Error as error:
                raise self._translated(error) from error

    def _add(self, txn: lmdb.Transaction, number: int, group: Sequence[tuple[bytes, int, int, int, int]]) -> None:
        cursor = txn.cursor(self._aggregates)
        before = dict(cursor.getmulti([aggregate_id for aggregate_id, *_ in group]))
        items = []
        for aggregate_id, version, first, rows, first_version in group:
            old = before.get(aggregate_id, b"")
            known = self._decode(aggregate_id, old) if old else _NOTHING
            if known.version != first_version - 1:
                what = f"{aggregate_id!r} is at version {known.version} in it, and goes on at {first_version} in file {number}"
                raise Corrupt(str(self.path), 0, what)
            assert not old or known.places[-1].file < number, "files are added in their order"
            rest = version.to_bytes(8, "little") + old[_VALUE.size :] + _SEGMENT.pack(number, first, rows)
            items.append((aggregate_id, crc32c(rest, crc32c(aggregate_id)).to_bytes(4, "little") + rest))
        cursor.putmulti(items)

    def _begin(self) -> lmdb.Transaction:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:  # the process that adds files made it larger
            self._env.set_mapsize(0)
            return self._env.begin()

    def _translated(self, error: Exception) -> StorageFull | Corrupt:
        """What LMDB says of a full disk or of damage, in our words."""
        if isinstance(error, lmdb.DiskError) or _SHORT_WRITE in str(error):
            return StorageFull(f"{self.path}: {error}; free some space", path=str(self.path))
        return Corrupt(str(self.path), 0, f"{error}; the directory has to be built again")

    def _checked(self, key: bytes | memoryview, value: bytes | memoryview) -> bytes:
        """The key. Raises Corrupt unless its value vouches for it."""
        key = bytes(key)
        if len(value) < _VALUE.size or crc32c(value[4:], crc32c(key)) != int.from_bytes(value[:4], "little"):
            raise Corrupt(str(self.path), 0, f"what it says of {key!r} does not match its checksum")
        return key

    def _decode(self, key: bytes | memoryview, value: bytes | memoryview) -> Entry:
        self._checked(key, value)
        raw = bytes(value)
        _, version = _VALUE.unpack_from(raw)
        return Entry(version, tuple(Place(*place) for place in _SEGMENT.iter_unpack(raw[_VALUE.size :])))


def _groups(index: EventIndex) -> Iterable[list[tuple[bytes, int, int, int, int]]]:
    """(id, version, first row, rows, first version) of every aggregate, in key order, some thousands at a time."""
    rows = index.columns["first_row"].astype("int64")
    ends = index.columns["id_ends"].astype("int64")
    ids = index.columns["ids"].tobytes()
    versions = index.columns["version"]
    for first in range(0, index.header.aggregates, _CHUNK_KEYS):
        last = min(first + _CHUNK_KEYS, index.header.aggregates)
        starts, stops = rows[first:last], rows[first + 1 : last + 1]
        names = zip(ends[first:last].tolist(), ends[first + 1 : last + 1].tolist(), strict=True)
        figures = (versions[stops - 1], starts, stops - starts, versions[starts])
        yield [
            (ids[start:stop], version, row, count, first_version)
            for (start, stop), version, row, count, first_version in zip(
                names, *(column.tolist() for column in figures), strict=True
            )
        ]
