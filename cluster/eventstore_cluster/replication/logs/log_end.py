"""Reads how a log ends: the place of its last record, that record's CRC, and where its epochs begin."""

from __future__ import annotations

from eventstore.arrays import np
from eventstore.chunks import slab
from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX, UNORDERED, Framing, Walk
from eventstore.chunks.recovery import read_records
from eventstore.errors import Corrupt
from eventstore_cluster.replica.epochs import LogTail

_ENDS = PREFIX.part("crc", "epoch").unpack_from
_COLUMNS = ("epoch", "crc", "length", "sequence")


class LogEndReader:
    """The end of a log of one kind, moved on by the records that follow.

    Attributes:
        framing: of the records.
    """

    def __init__(self, framing: Framing) -> None:
        self.framing = framing
        self.tail = LogTail()
        self.last_crc = 0

    def add(self, chunk: int, data: bytes | memoryview, base: int, found: Walk) -> None:
        """Takes records in the order of the log: `data` lies at byte `base` of the chunk, and `found` is its walk."""
        if not found.offsets:
            return
        (_, first), (crc, last) = (_ENDS(data, offset - base) for offset in (found.offsets[0], found.offsets[-1]))
        if first == last:  # epochs only grow: it is the epoch of all
            self.tail, self.last_crc = self.tail.grow(last, (chunk, found.end)), crc
            return
        rows = slab.gather(data, np.array(found.offsets) - base, PREFIX.dtype(*_COLUMNS))
        self._add(chunk, rows, np.array(found.offsets))

    def skip(self, header: ChunkHeader) -> None:
        """Takes a completed chunk all of whose records are of the epoch in which it was begun, without reading them."""
        self.tail = self.tail.grow(header.epoch, (header.number, header.end))

    def add_sorted(self, header: ChunkHeader, file: File, name: str) -> None:
        """Takes all records of a sorted file, in the order in which they were appended.

        Raises:
            Corrupt, ReadFailed
        """
        every: list[slab.SlabRows] = []

        def note(data: memoryview, base: int, found: Walk) -> None:
            every.append(slab.gather(data, np.array(found.offsets) - base, PREFIX.dtype(*_COLUMNS)))

        end, fault = read_records(file, name, RECORDS_FROM, header.end, UNORDERED, self.framing, note)
        if fault is not None:
            raise Corrupt(name, end.end, fault)
        rows = np.concatenate(every)
        rows = rows[np.argsort(rows["sequence"])]
        lengths = rows["length"].astype(np.int64)
        self._add(header.number, rows, RECORDS_FROM + lengths.cumsum() - lengths)

    def _add(self, chunk: int, rows: slab.SlabRows, offsets: slab.Ints) -> None:
        epochs, ends = rows["epoch"].astype(np.int64), offsets + rows["length"].astype(np.int64)
        firsts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]
        for first, behind in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            self.tail = self.tail.grow(int(epochs[first]), (chunk, int(ends[behind - 1])))
        self.last_crc = int(rows["crc"][-1])
