"""The directory: aggregate id → its version and where its events are in the sorted files. An LMDB environment off the
Python heap.

    key    aggregate id (1–255 bytes)
    value  CRC-32C of the rest (4) | version (8) | per sorted file, oldest first: file number (4), first row (4), rows
    (4)

Derived data: it is written in one transaction per sorted file, after that file was switched, and says in a second
table which files it covers. So it may lag behind the log, never run ahead, and when anything about it is in doubt it
is wiped and built again from the indexes. Never opened with `writemap` (a full disk would be a SIGBUS).
"""

from __future__ import annotations

import contextlib
import shutil
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
_MAP_BYTES: Final = 16 * 1024**3
_CHUNK_KEYS: Final = 20_000


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


class Directory:
    """One environment. Any number of readers; one writer at a time, in this or in another process."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._open()

    def _open(self) -> None:
        self._env = lmdb.open(str(self.path), map_size=_MAP_BYTES, max_dbs=2, max_readers=256, meminit=False, readahead=False)
        self._aggregates = self._env.open_db(b"aggregates")
        self._files = self._env.open_db(b"files")

    def close(self) -> None:
        self._env.close()

    def wipe(self) -> None:
        """Throws everything away; the next `add_file` calls build it again."""
        self._env.close()
        shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        self._open()

    def covered(self) -> dict[int, tuple[int, int]]:
        """File number → (checksum, end) of each sorted file that is in the directory."""
        with self._reading() as txn:
            cursor = txn.cursor(self._files)
            return {int.from_bytes(key, "big"): _FILE.unpack(value) for key, value in cursor}

    def get(self, aggregate_id: bytes) -> Entry | None:
        """What is in the sorted files.

        Raises:
            Corrupt: the value is damaged; wipe and rebuild.
        """
        with self._reading() as txn:
            raw = txn.get(aggregate_id, db=self._aggregates)
        return None if raw is None else self._decode(raw)

    def get_many(self, aggregate_ids: Iterable[bytes]) -> dict[bytes, Entry]:
        """The entries of those that exist: one pass of a cursor, half the cost per id of `get` when there are many."""
        with self._reading() as txn:
            found = txn.cursor(self._aggregates).getmulti(sorted(aggregate_ids))
        return {key: self._decode(raw) for key, raw in found}

    def count(self) -> int:
        with self._reading() as txn:
            return int(txn.stat(self._aggregates)["entries"])

    def probe(self) -> None:
        """Reads from the start, the end and in between; a damaged environment fails or kills the process here.

        Raises:
            Corrupt
        """
        with self._reading() as txn:
            cursor = txn.cursor(self._aggregates)
            for start in (b"\0", *(bytes((first,)) for first in range(0, 256, 5))):
                if cursor.set_range(start):
                    self._decode(cursor.value())
            if cursor.last():
                self._decode(cursor.value())

    def add_file(self, index: EventIndex) -> None:
        """Adds what a sorted file holds. Doing it again changes nothing.

        Raises:
            StorageFull: nothing was changed.
        """
        header = index.header
        if self.covered().get(header.number) == (header.checksum, header.end):
            return
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for group in _groups(index):
                        self._add(txn, header.number, group)
                    key = header.number.to_bytes(4, "big")
                    txn.put(key, _FILE.pack(header.checksum, header.end), db=self._files)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.DiskError as error:
                raise StorageFull(f"{self.path}: {error}; free some space", path=str(self.path)) from None

    def _add(self, txn: lmdb.Transaction, number: int, group: Sequence[tuple[bytes, int, int, int]]) -> None:
        cursor = txn.cursor(self._aggregates)
        before = dict(cursor.getmulti([aggregate_id for aggregate_id, *_ in group]))
        items = []
        for aggregate_id, version, first, rows in group:
            old = before.get(aggregate_id, b"")
            if old:
                self._decode(old)
            rest = version.to_bytes(8, "little") + old[_VALUE.size :] + _SEGMENT.pack(number, first, rows)
            items.append((aggregate_id, crc32c(rest).to_bytes(4, "little") + rest))
        cursor.putmulti(items)

    @contextlib.contextmanager
    def _reading(self) -> Iterable[lmdb.Transaction]:  # type: ignore[misc] # contextmanager wants Iterator; both are right
        try:
            txn = self._env.begin()
        except lmdb.MapResizedError:  # the process that adds files made it larger
            self._env.set_mapsize(0)
            txn = self._env.begin()
        with txn:
            yield txn

    def _decode(self, raw: bytes) -> Entry:
        crc, version = _VALUE.unpack_from(raw)
        if crc32c(raw[4:]) != crc:
            raise Corrupt(str(self.path), 0, "a value of the directory does not match its checksum; rebuild it")
        return Entry(version, tuple(Place(*place) for place in _SEGMENT.iter_unpack(raw[_VALUE.size :])))


def _groups(index: EventIndex) -> Iterable[list[tuple[bytes, int, int, int]]]:
    """(id, version, first row, rows) of every aggregate, in key order, some thousands at a time."""
    rows = index.columns["first_row"].astype("int64")
    ends = index.columns["id_ends"].astype("int64")
    ids = index.columns["ids"].tobytes()
    versions = index.columns["version"]
    for first in range(0, index.header.aggregates, _CHUNK_KEYS):
        last = min(first + _CHUNK_KEYS, index.header.aggregates)
        starts, stops = rows[first:last], rows[first + 1 : last + 1]
        names = zip(ends[first:last].tolist(), ends[first + 1 : last + 1].tolist(), strict=True)
        yield [
            (ids[start:stop], version, row, count)
            for (start, stop), version, row, count in zip(
                names, versions[stops - 1].tolist(), starts.tolist(), (stops - starts).tolist(), strict=True
            )
        ]
