"""The bytes of a sorted file as they were before it was sorted: in the order in which its records were appended."""

from __future__ import annotations

from eventstore.arrays import np
from eventstore.chunks import slab
from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX, UNORDERED, Walk
from eventstore.chunks.recovery import read_records
from eventstore.errors import Corrupt

_PLACED = ("length", "sequence")


class AppendOrder:
    """Keeps where each record is, and a map of the file."""

    def __init__(self, header: ChunkHeader, file: File, name: str, header_bytes: int) -> None:
        """Reads all records. Raises Corrupt, ReadFailed."""
        offsets: list[slab.Ints] = []
        rows: list[slab.Rows] = []

        def note(data: memoryview, base: int, found: Walk) -> None:
            places = np.array(found.offsets)
            offsets.append(places)
            rows.append(slab.gather(data, places - base, PREFIX.dtype(*_PLACED)))

        end, fault = read_records(file, name, RECORDS_FROM, header.end, UNORDERED, header_bytes, note)
        if fault is not None:
            raise Corrupt(name, end.end, fault)
        found = np.concatenate(rows)
        order = np.argsort(found["sequence"], kind="stable")
        self._places = np.concatenate(offsets)[order]
        self._lengths = found["length"].astype(np.int64)[order]
        self._starts = RECORDS_FROM + self._lengths.cumsum() - self._lengths
        self._view = file.map()

    def read(self, offset: int, length: int) -> bytes:
        """Returns up to `length` bytes from where byte `offset` was."""
        first = int(np.searchsorted(self._starts, offset, "right")) - 1
        behind = int(np.searchsorted(self._starts, offset + length, "left"))
        places, sizes = self._places[first:behind].tolist(), self._lengths[first:behind].tolist()
        view = self._view
        data = b"".join([view[place : place + size] for place, size in zip(places, sizes, strict=True)])
        skipped = offset - int(self._starts[first])
        return data[skipped : skipped + length]
