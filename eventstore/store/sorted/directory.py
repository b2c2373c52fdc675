"""The directory: aggregate id → its version and its rows in the sorted files, in an LMDB environment off the Python heap.

Derived data. Each sorted file is added in one transaction, after its switch, and a second table lists the files that are
covered. So the directory may lag the log but never be ahead of it. If anything about it is in doubt, it is wiped and
rebuilt from the indexes. It is never opened with `writemap`: a full disk would raise SIGBUS.

A lookup must never wrongly answer "there is no such aggregate": the aggregate would start again at version 1. LMDB has no
checksums, so a key with a flipped bit is simply not found. But a search misled by one damaged key ends next to that key, or
at the edge of a leaf that it does not belong to. So a lookup that finds nothing checks both neighbours: each must match its
checksum, and the missing key must lie between them. This does not detect damage outside the entries, such as a page number in a
branch that leads to another sound page. Adding a file does: its aggregates must continue at the version that the directory has
for them, or begin at 1.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from eventstore.chunks.files import OsFiles, mode_in, open_private
from eventstore.chunks.layout import FieldLayout
from eventstore.errors import Corrupt, StorageFull
from eventstore.store.sorted.directory_entry import NO_ENTRY, DirectoryEntry, RowRange, check_entry, decode_entry, extended
from eventstore.store.sorted.directory_rows import groups_of, read_versions
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.sorted.map_gate import MapGate

_FILE = FieldLayout(("checksum", "Q"), ("end", "Q"))
_MAP_BYTES: Final = 64 * 1024**3  # address space, not memory; doubled if it is still too small
_READ_AHEAD_BYTES: Final = 1024 * 1024
AGGREGATES: Final = b"aggregates-2"  # the layout since values include a checksum of their keys
FILES: Final = b"files-2"
DAMAGED_MARK: Final = "damaged"
_SHORT_WRITE: Final = "Input/output error"  # LMDB's message if a full disk took only part of a write
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def write_mark(path: Path, content: bytes = b"") -> None:
    """Leaves a mark for the next process that opens the directory. Raises OSError."""
    with open(path, "wb", buffering=0, opener=open_private) as file:
        file.write(content)


class Directory:
    """One environment, with any number of readers, and one writer at a time in this or another process.

    Raises:
        Corrupt: it cannot be opened; wipe and rebuild it.
        StorageFull

    Attributes:
        lookups: aggregates looked up so far; a few that ran at the same moment may be missing.
    """

    def __init__(self, path: Path, map_bytes: int = _MAP_BYTES) -> None:
        OsFiles().make_folder(path)
        self.path = path
        self._map_bytes = map_bytes
        self.proven = True  # False: opened after an unclean stop, and not read completely since
        self.damage: str | None = None
        self.lookups = 0
        self.gate = MapGate()
        self._open()

    def _open(self) -> None:
        try:
            self._env = lmdb.open(
                str(self.path),
                map_size=self._map_bytes,
                max_dbs=2,
                max_readers=256,
                meminit=False,
                readahead=False,
                mode=mode_in(self.path) & ~0o111,
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
        """Checks that the file has all its pages: LMDB maps them unchecked, and touching a missing one is a SIGBUS."""
        pages, size = self._env.info()["last_pgno"] + 1, (self.path / "data.mdb").stat().st_size
        if size < pages * self._env.stat()["psize"]:
            raise Corrupt(str(self.path / "data.mdb"), size, f"the file ends here, but should have {pages} pages")

    def _check_layout(self) -> None:
        with self._env.begin() as txn:
            if other := {bytes(name) for name in txn.cursor().iternext(values=False)} - {AGGREGATES, FILES}:
                raise Corrupt(str(self.path), 0, f"its layout differs from this program's ({min(other)!r})")

    def close(self) -> None:
        self._env.close()

    def report_damage(self, error: Corrupt) -> None:
        """Logs damage, once, and has the next start rebuild the directory. Until then lookups use the indexes."""
        if self.damage is None:
            self.damage = str(error.fields["what"])
            _log.error("%s; lookups use the indexes instead, and the next start rebuilds the directory", error)
            with contextlib.suppress(OSError):  # the next lookup reports it again
                write_mark(self.path / DAMAGED_MARK)

    @property
    def attention(self) -> str | None:
        """A message for the operator if the directory is damaged, else None."""
        if self.damage is None:
            return None
        return (
            f"the directory {self.path} is damaged ({self.damage}): lookups use the indexes instead, which is slower. "
            "The next start rebuilds it"
        )

    def covered(self) -> dict[int, tuple[int, int]]:
        """Returns file number → (checksum, end) of each sorted file in the directory."""
        unpack = _FILE.struct.unpack
        return self._read(lambda txn: {int.from_bytes(key, "big"): unpack(value) for key, value in txn.cursor(self._files)})

    def get(self, aggregate_id: bytes) -> DirectoryEntry | None:
        """Returns the aggregate's entry, or None if it is in no sorted file.

        Raises:
            Corrupt: the value is damaged, or a key next to it; use the indexes instead.
        """
        self.lookups += 1

        def read(txn: lmdb.Transaction) -> DirectoryEntry | None:
            raw = txn.get(aggregate_id, db=self._aggregates)
            if raw is not None:
                return decode_entry(aggregate_id, raw, str(self.path))
            self._check_absent(txn.cursor(self._aggregates), aggregate_id)
            return None

        return self._read(read)

    def _check_absent(self, cursor: lmdb.Cursor, aggregate_id: bytes) -> None:
        """Raises Corrupt unless the key belongs between two sound neighbours, or after the last or before the first key."""
        between = True
        if cursor.set_range(aggregate_id):
            between, has_before = self._key_at(cursor) > aggregate_id, cursor.prev()
        else:
            has_before = cursor.last()
        if has_before:
            between = self._key_at(cursor) < aggregate_id and between
        if not between:
            raise Corrupt(str(self.path), 0, f"keys are out of order where {aggregate_id!r} belongs")

    def _key_at(self, cursor: lmdb.Cursor) -> bytes:
        return check_entry(*cursor.item(), str(self.path))

    def get_many(self, aggregate_ids: Iterable[bytes]) -> dict[bytes, DirectoryEntry]:
        """Returns the entries that exist, in one pass of a cursor: for many ids, half the cost of `get` for each.

        Raises:
            Corrupt: a value is damaged, or a key next to it; use the indexes instead.
        """
        wanted = sorted(aggregate_ids)
        self.lookups += len(wanted)

        def read(txn: lmdb.Transaction) -> dict[bytes, DirectoryEntry]:
            cursor = txn.cursor(self._aggregates)
            name = str(self.path)
            found = {bytes(key): decode_entry(key, raw, name) for key, raw in cursor.getmulti(wanted)}
            for aggregate_id in wanted:
                if aggregate_id not in found:
                    self._check_absent(cursor, aggregate_id)
            return found

        return self._read(read)

    def versions_from(self, low: bytes, count: int) -> list[tuple[bytes, int]]:
        """Returns up to `count` ids that are not smaller than `low`, in order, with their versions.

        Raises:
            Corrupt: an entry among them or before them is damaged; use the indexes instead.
        """
        return self._read(lambda txn: read_versions(txn.cursor(self._aggregates), low, count, str(self.path)))

    def count(self) -> int:
        return self._read(lambda txn: int(txn.stat(self._aggregates)["entries"]))

    def touch(self) -> None:
        """Reads the pages that every use begins with: the roots, and the paths to the first and the last key.

        Raises:
            Corrupt
        """
        self.covered()

        def read(txn: lmdb.Transaction) -> None:
            cursor = txn.cursor(self._aggregates)
            for found in (cursor.first(), cursor.last()):
                if found:
                    self._key_at(cursor)

        self._read(read)

    def probe(self) -> None:
        """Visits every page; a damaged environment fails or kills the process here. Values are checked when they are read.

        First reads the file sequentially, because the pages are visited in the order of keys: 2 s per GB instead of 15.

        Raises:
            Corrupt
        """
        try:
            with open(self.path / "data.mdb", "rb", buffering=0) as file:
                while file.read(_READ_AHEAD_BYTES):
                    pass
            with self.gate, open(os.devnull, "wb") as nowhere:
                self._env.copyfd(nowhere.fileno(), compact=True)
        except lmdb.Error as error:
            raise self._translated(error) from error
        self.covered()

    def check(self) -> None:
        """Checks every entry and the order of keys; about 2 s per million.

        Raises:
            Corrupt
        """

        def read(txn: lmdb.Transaction) -> None:
            before = b""
            for key, value in txn.cursor(self._aggregates):
                checked = check_entry(key, value, str(self.path))
                if checked <= before:
                    raise Corrupt(str(self.path), 0, f"keys are out of order: {checked!r} after {before!r}")
                before = checked

        self._read(read)

    def add_file(self, index: EventIndex) -> None:
        """Adds the aggregates of a sorted file; does nothing if the file was added before.

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
                self._env.reader_check()  # killed readers would pin their pages forever
                with self.gate, self._env.begin(write=True) as txn:
                    key = header.number.to_bytes(4, "big")
                    if txn.get(key, db=self._files) is not None:
                        return  # another process has added it since
                    for group in groups_of(index):
                        self._add(txn, header.number, group)
                    txn.put(key, _FILE.struct.pack(header.checksum, header.end), db=self._files)
                return
            except lmdb.MapFullError:
                with self.gate.alone():
                    self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.MapResizedError:  # another process had made it larger
                self._adopt_map()
            except lmdb.Error as error:
                raise self._translated(error) from error

    def _add(self, txn: lmdb.Transaction, number: int, group: Sequence[tuple[bytes, int, int, int, int]]) -> None:
        cursor = txn.cursor(self._aggregates)
        before = dict(cursor.getmulti([aggregate_id for aggregate_id, *_ in group]))
        items = []
        for aggregate_id, version, first, rows, first_version in group:
            old = before.get(aggregate_id, b"")
            entry = decode_entry(aggregate_id, old, str(self.path)) if old else NO_ENTRY
            if entry.version != first_version - 1:
                what = f"{aggregate_id!r} is at version {entry.version} in it, continues at {first_version} in file {number}"
                raise Corrupt(str(self.path), 0, what)
            assert not old or entry.row_ranges[-1].file < number, "files are added in their order"
            items.append((aggregate_id, extended(aggregate_id, old, version, RowRange(number, first, rows))))
        cursor.putmulti(items)

    def _read(self, use: Callable[[lmdb.Transaction], Result]) -> Result:
        while True:
            try:
                with self.gate, self._env.begin() as txn:
                    return use(txn)
            except lmdb.MapResizedError:  # the process that adds files made it larger
                self._adopt_map()
            except (lmdb.Error, struct.error) as error:
                raise self._translated(error) from error

    def _adopt_map(self) -> None:
        with self.gate.alone():
            self._env.set_mapsize(0)

    def _translated(self, error: Exception) -> StorageFull | Corrupt:
        """Converts LMDB's error for a full disk or for damage."""
        if isinstance(error, lmdb.DiskError) or _SHORT_WRITE in str(error):
            return StorageFull(f"{self.path}: {error}; free some space", path=str(self.path))
        return Corrupt(str(self.path), 0, f"{error}; the directory has to be rebuilt")
