"""The bytes of a sorted file as they were before it was sorted: in the order in which its records were appended."""

from __future__ import annotations

from eventstore.arrays import np
from eventstore.chunks import slab
from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX, UNORDERED, Framing, Walk
from eventstore.chunks.recovery import read_records
from eventstore.errors import Corrupt

_PLACED = ("length", "sequence")


class AppendOrder:
    """Keeps where each record is, and a map of the file."""

    def __init__(self, header: ChunkHeader, file: File, name: str, framing: Framing) -> None:
        """Reads all records. Raises Corrupt, ReadFailed."""
        offsets: list[slab.Ints] = []
        rows: list[slab.SlabRows] = []

        def note(data: memoryview, base: int, found: Walk) -> None:
            places = np.array(found.offsets)
            offsets.append(places)
            rows.append(slab.gather(data, places - base, PREFIX.dtype(*_PLACED)))

        end, fault = read_records(file, name, RECORDS_FROM, header.end, UNORDERED, framing, note)
        if fault is not None:
            raise Corrupt(name, end.end, fault)
        found = np.concatenate(rows)
        order = np.argsort(found["sequence"], kind="stable")
        self._places = np.concatenate(offsets)[order]
        self._lengths = found["length"].astype(np.int64)[order]
        self._bounds = RECORDS_FROM + np.concatenate(([0], self._lengths.cumsum()))
        self._view = file.map()

    def read(self, offset: int, length: int) -> bytes:
        """Returns up to `length` bytes from where byte `offset` was."""
        first = self._at_or_before(offset)
        skipped = offset - int(self._bounds[first])
        return self._joined(first, int(np.searchsorted(self._bounds, offset + length)))[skipped : skipped + length]

    def records(self, offset: int, bytes_max: int) -> bytes:
        """Returns whole records from where byte `offset` was, where one began: at least one, about `bytes_max` bytes."""
        first = self._at_or_before(offset)
        return self._joined(first, max(self._at_or_before(offset + bytes_max), first + 1))

    def _at_or_before(self, offset: int) -> int:
        """Returns which record began there, or contained that byte."""
        return int(np.searchsorted(self._bounds, offset, "right")) - 1

    def _joined(self, first: int, behind: int) -> bytes:
        places, sizes = self._places[first:behind].tolist(), self._lengths[first:behind].tolist()
        view = self._view
        return b"".join([view[place : place + size] for place, size in zip(places, sizes, strict=True)])
