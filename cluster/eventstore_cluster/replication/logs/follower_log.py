"""The log of one kind in the folder of a follower: the bytes of its leader's log, written as the leader wrote them.

It ends with the last byte of a record, never with an empty or a completed chunk: which chunk comes next, and when, is decided
by the leader of the records that follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest

from eventstore.arrays import np
from eventstore.chunks import slab
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.front import Segment
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.opening import OpenedChunks
from eventstore.chunks.record import PREFIX, Framing, Walk
from eventstore.chunks.record import walk as record_walk
from eventstore.errors import Corrupt, FolderRefused
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.places import NOWHERE, LogEnd
from eventstore_cluster.replication.logs import cutting
from eventstore_cluster.replication.logs.log_end import LogEndReader
from eventstore_cluster.replication.logs.pieces import Payload, Piece

_FEW_BYTES = 2048  # records in so little are not worth arrays
_CLAIMS = ("durable", "crc")


class FollowerLog:
    """The log of one kind, as a follower writes it. Owned by one thread at a time. After an error it must be opened again.

    Attributes:
        folder: of its chunks.
        sorted_through: the number of the last chunk that was sorted when the log was opened.
    """

    def __init__(self, folder: ChunkFolder, framing: Framing, *, size_bytes: int, preallocate_bytes: int) -> None:
        """Opens the log of a locked folder; finishes what was interrupted, and cuts off a torn tail.

        Raises:
            FolderRefused, Corrupt
        """
        self.folder = folder
        self._framing = framing
        self._open = partial(
            OpenedChunks,
            folder,
            framing,
            size_bytes=size_bytes,
            preallocate_bytes=preallocate_bytes,
            sync=True,
            clock=time.time,
        )
        cutting.finish_cut(folder)
        self._recover()

    @property
    def tail(self) -> LogTail:
        return self._end.tail

    @property
    def last_crc(self) -> int:
        return self._end.last_crc

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    def store(self, payload: Payload) -> None:
        """Writes what follows the end of the log; durable on return.

        Raises:
            Corrupt: it is not what follows, or damaged; the pieces before are stored.
            StorageFull, Poisoned
        """
        for piece in payload.pieces:
            self._store(piece, payload.key)

    def cut(self, end: LogEnd) -> None:
        """Cuts the log back to `end`, durably; what is cut is kept in `cut/`. Raises FolderRefused, StorageFull."""
        self._writer.close()
        cutting.cut(self.folder, end)
        self._recover()

    def delete_through(self, number: int) -> None:
        """Deletes the oldest chunks up to this one, as the leader has; never the last one. Raises OSError."""
        number = min(number, self.tail.end[0] - 1)
        if number > 0:
            self.folder.delete_through(number)

    def close(self) -> None:
        self._writer.close()

    def _recover(self) -> None:
        self._deleted = self.folder.deleted()
        opened = self._load()
        last = opened.headers[-1] if opened.headers else None
        reopened = last is not None and last.completed and not last.sorted and last.number > self.folder.inherited
        if last is not None and (reopened or (not last.sorted and self.tail.end[0] < last.number)):
            opened.writer.close()
            cutting.cut(self.folder, self.tail.end)
            opened = self._load()
        self._writer, self._next_sequence = opened.writer, opened.front.next_sequence

    def _load(self) -> OpenedChunks:
        opened = self._open()
        self._end = LogEndReader(self._framing)
        self.sorted_through = max((header.number for header in opened.headers if header.sorted), default=0)
        for header, following in zip_longest(opened.headers, opened.headers[1:]):
            if following is not None and following.epoch == header.epoch:  # epochs only grow, so it holds no other one
                self._end.skip(header)
                continue
            path = self.folder.chunk_path(header.number)
            file = self.folder.files.open(path)
            try:
                if header.sorted:
                    self._end.add_sorted(header, file, str(path))
                else:
                    opened.load(header, file, partial(self._end.add, header.number))
            finally:
                file.close()
        opened.finish()
        return opened

    def _store(self, piece: Piece, key: bytes) -> None:
        if piece.begun is not None and piece.completed is None:
            self._skip_to(piece.begun)
        found = self._checked(piece)
        if key != self._writer.key:  # of another leader: what its records claim is proven with it (R8)
            self._writer.key = key
            if piece.begun is None:
                self.folder.write_document(piece.chunk, piece.offset, key)
        for start, end in self._batches(piece, found):
            self._writer.write(self._segment(piece, found, start, end), piece.begun)
        self._end.add(piece.chunk, piece.data, piece.offset, found)
        self._next_sequence = found.next_sequence

    def _skip_to(self, begun: ChunkHeader) -> None:
        """Drops what the leader has deleted, if its log now begins later than this one ends."""
        if not self.folder.deletable or (self.tail.end == NOWHERE and begun.number == self._deleted + 1):
            return
        self._writer.close()
        self.folder.delete_through(begun.number - 1)
        self._recover()
        self._next_sequence, self._deleted = begun.first_sequence, begun.number - 1

    def _checked(self, piece: Piece) -> Walk:
        """Checks the records of a piece; returns the walk over them."""
        chunk, offset = self.tail.end
        if piece.begun is None:
            follows = (piece.chunk, piece.offset) == (chunk, offset) != NOWHERE
        else:
            begun = piece.begun
            follows = (
                (piece.chunk, piece.offset) == (begun.number, RECORDS_FROM) == (max(chunk, self._deleted) + 1, RECORDS_FROM)
            )
            follows = follows and begun.first_sequence == self._next_sequence and begun.kind == self.folder.kind
            if begun.store != (own := self.folder.store_of(begun.number)):
                raise FolderRefused(self._name(piece), f"the leader sends records of store {begun.store}, this is {own}")
            before = self._writer.as_completed
            if piece.completed != (before and before.unsorted()):
                raise Corrupt(
                    self._name(piece), offset, f"chunk {chunk} ends otherwise at the leader; remove this replica's folder"
                )
        if len(piece.data) > _FEW_BYTES:
            found = slab.walk(piece.data, piece.offset, self._next_sequence, self._framing)
        else:
            found = record_walk(memoryview(piece.data), piece.offset, self._next_sequence, self._framing)
        if not follows or found.fault is not None or not found.offsets:
            what = found.fault if follows and found.fault is not None else f"the log ends at byte {offset} of chunk {chunk}"
            raise Corrupt(self._name(piece), found.end if follows else piece.offset, f"not what follows: {what}")
        if self._framing.whole(piece.data, piece.offset, found) < len(found.offsets):
            raise Corrupt(self._name(piece), found.end, "the leader sends a part of a commit of several aggregates")
        return found

    def _name(self, piece: Piece) -> str:
        return str(self.folder.chunk_path(piece.chunk))

    def _batches(self, piece: Piece, found: Walk) -> Iterator[tuple[int, int]]:
        """Yields the ranges of records that may be synced together: a record claims how far its file is durable, and that
        must be true here as well when it is written, since recovery believes it (R8).
        """
        if found.durable <= found.offsets[0]:
            yield 0, len(found.offsets)
            return
        offsets = np.array(found.offsets)
        claims = slab.gather(piece.data, offsets - piece.offset, PREFIX.dtype(*_CLAIMS))["durable"].astype(np.int64)
        start, count = 0, len(offsets)
        while start < count:
            later = np.flatnonzero(claims[start:] > offsets[start])
            end = start + int(later[0]) if len(later) else count
            if end == start:
                raise Corrupt(self._name(piece), int(offsets[start]), "claims to be durable itself")
            yield start, end
            start = end

    def _segment(self, piece: Piece, found: Walk, start: int, end: int) -> Segment:
        whole = end == len(found.offsets)
        first, last = found.offsets[start], found.end if whole else found.offsets[end]
        data = piece.data if start == 0 and whole else piece.data[first - piece.offset : last - piece.offset]
        checksum = found.checksum
        if not whole or start:
            crcs = slab.gather(data, np.array(found.offsets[start:end]) - first, PREFIX.dtype(*_CLAIMS))["crc"]
            checksum = int(crcs.sum(dtype=np.uint64))
        return Segment(
            piece.chunk,
            first,
            found.sequences[start],
            found.next_sequence if whole else found.sequences[end],
            begins_chunk=piece.begun is not None and start == 0,
            buffers=[data],
            end=last,
            checksum=checksum,
            records=end - start,
        )
