"""Reads pieces of a leader's log for its followers: from its files, in the order in which the records were appended."""

from __future__ import annotations

import threading
from typing import Final

from eventstore.chunks import slab
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX, TRAILER, UNORDERED, Framing
from eventstore.errors import Corrupt
from eventstore_cluster.replica.places import NOWHERE, LogEnd
from eventstore_cluster.replication.logs.append_order import AppendOrder
from eventstore_cluster.replication.logs.pieces import Piece

_ORDERS_MAX: Final = 2  # each takes 24 bytes for each record of its file
_CRC = PREFIX.part("crc", stop=PREFIX["crc"].end)


class Differs(Exception):
    """The follower's last record is not the record that ends at this place here."""


class LogReader:
    """Reads records on any thread."""

    def __init__(self, folder: ChunkFolder, framing: Framing) -> None:
        self._folder = folder
        self._framing = framing
        self._orders: dict[int, AppendOrder] = {}
        self._one_at_a_time = threading.Lock()

    def after(self, start: LogEnd, last_crc: int, written: LogEnd, bytes_max: int) -> Piece | None:
        """Returns whole records that follow `start`, at least one, about `bytes_max` bytes; None if there are none.

        `written`: the end of the last record in the files. `last_crc`: of the record before `start`, 0 if it is the first.

        Raises:
            Differs
            Corrupt, FolderRefused, ReadFailed: a file is damaged or gone.
        """
        if start >= written:
            return None
        if start == NOWHERE:
            return self._first_of(self._folder.deleted() + 1, None, written, bytes_max)
        chunk, offset = start
        if chunk <= (deleted := self._folder.deleted()):
            return self._first_of(deleted + 1, None, written, bytes_max)
        header = self._folder.read_header(chunk)
        if self._crc_before(header, offset) != last_crc:
            raise Differs
        if header.completed and offset == header.end:
            return self._first_of(chunk + 1, header.unsorted(), written, bytes_max)
        piece = Piece(chunk, offset, self._read(header, offset, written, bytes_max))
        if header.sorted != self._folder.read_header(chunk).sorted:  # meanwhile: the bytes may be the sorted file's
            return self.after(start, last_crc, written, bytes_max)
        return piece

    def _first_of(self, number: int, completed: ChunkHeader | None, written: LogEnd, bytes_max: int) -> Piece:
        header = self._folder.read_header(number)
        data = self._read(header, RECORDS_FROM, written, bytes_max)
        if header.sorted != self._folder.read_header(number).sorted:
            return self._first_of(number, completed, written, bytes_max)
        return Piece(number, RECORDS_FROM, data, header.reopened(), completed)

    def _read(self, header: ChunkHeader, offset: int, written: LogEnd, bytes_max: int) -> bytes:
        """Returns records from `offset` on, at least one, and none without those that belong to it."""
        end = written[1] if written[0] == header.number else header.end
        wanted = min(end - offset, bytes_max)
        while True:
            data = self._order(header).records(offset, wanted) if header.sorted else self._bytes(header, offset, wanted)
            found = slab.walk(data, offset, UNORDERED, self._framing)
            if many := self._framing.whole(data, offset, found):
                return data[: (found.end if many == len(found.offsets) else found.offsets[many]) - offset]
            if (found.fault is not None and not found.wants) or wanted == end - offset:
                raise Corrupt(str(self._folder.chunk_path(header.number)), offset, found.fault or "no whole commit")
            wanted = min(end - offset, max(found.wants, 2 * wanted))

    def _crc_before(self, header: ChunkHeader, offset: int) -> int:
        """Returns the CRC of the record that ends at `offset`; raises Differs if none does."""
        trailer = self._bytes(header, offset - TRAILER.size, TRAILER.size) if offset > RECORDS_FROM else b""
        if len(trailer) < TRAILER.size:
            raise Differs
        _, length = TRAILER.struct.unpack(trailer)
        if not TRAILER.size < length <= offset - RECORDS_FROM:
            raise Differs
        return int(_CRC.unpack(self._bytes(header, offset - length, _CRC.size))[0])

    def _bytes(self, header: ChunkHeader, offset: int, length: int) -> bytes:
        if header.sorted:
            return self._order(header).read(offset, length)
        file = self._folder.files.open(self._folder.chunk_path(header.number))
        try:
            return file.read_at(offset, length)
        finally:
            file.close()

    def _order(self, header: ChunkHeader) -> AppendOrder:
        """Returns the order in which the records of a sorted file were appended. Keeps the orders of the files asked for
        last.
        """
        with self._one_at_a_time:
            kept = self._orders.pop(header.number, None)
            self._orders[header.number] = order = kept or self._read_order(header)
            while len(self._orders) > _ORDERS_MAX:
                del self._orders[next(iter(self._orders))]
            return order

    def _read_order(self, header: ChunkHeader) -> AppendOrder:
        path = self._folder.chunk_path(header.number)
        file = self._folder.files.open(path)
        try:
            return AppendOrder(header, file, str(path), self._framing)
        finally:
            file.close()
