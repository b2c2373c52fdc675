"""Reads a sorted event file and verifies it by its index: one CRC for all records of an aggregate, not one for each record.

The CRC of an aggregate's bytes covers the CRCs of its records, and these are counted and summed up as the header says. So what
is yielded is as certain as after a check of each record, for a fraction of the time where aggregates have several events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from eventstore.arrays import np
from eventstore.checksum import crc32c
from eventstore.chunks import slab
from eventstore.chunks.files import File
from eventstore.chunks.header import FOOTER_BYTES, RECORDS_FROM, ChunkHeader, check_footer
from eventstore.chunks.record import PREFIX
from eventstore.errors import Corrupt
from eventstore.store.sorted.event_index import EventIndex

_PIECE_BYTES: Final = 4 * 1024 * 1024
_SUM_MASK: Final = 2**64 - 1


def copied_by_index(file: File, name: str, header: ChunkHeader, index: EventIndex) -> Iterator[bytes]:
    """Yields the bytes of the whole file, in order; records only once they are known to be good.

    `index`: of this file, all of which was verified.

    Raises:
        Corrupt: what is damaged, and where.
        OSError
    """
    yield file.read_at(0, RECORDS_FROM)
    places = index.columns["record"][:].astype(np.int64)
    bounds = places[index.columns["first_row"][:].astype(np.int64)]
    expected = index.columns["extent_crc"][:].tolist()
    starts = places[:-1][np.concatenate(([True], np.diff(places[:-1]) != 0))]
    if bounds[0] != RECORDS_FROM or bounds[-1] != header.end:
        raise Corrupt(name, int(bounds[0]), "the records are not where the index says")
    first, total, at = 0, 0, bounds.tolist()
    while first < len(expected):
        last = max(first + 1, int(np.searchsorted(bounds, at[first] + _PIECE_BYTES, "right")) - 1)
        begin, end = at[first], at[last]
        data = file.read_at(begin, end - begin)
        view = memoryview(data)
        for place in range(first, last):
            if crc32c(view[at[place] - begin : at[place + 1] - begin]) != expected[place]:
                raise Corrupt(name, at[place], "the checksum of an aggregate's records does not match")
        inside = starts[np.searchsorted(starts, begin) : np.searchsorted(starts, end)] - begin
        total += int(slab.gather(data, inside, PREFIX.dtype("crc"))["crc"].sum(dtype=np.uint64))
        yield data
        first = last
    if (len(starts), total & _SUM_MASK) != (header.records, header.checksum):
        raise Corrupt(name, header.end, "the records do not match the header's count and checksum")
    footer = file.read_at(header.end, FOOTER_BYTES)
    check_footer(footer, header, name)
    yield footer
