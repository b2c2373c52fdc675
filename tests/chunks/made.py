"""Records and segments made for tests of the file layer, which knows nothing of what is in them."""

from __future__ import annotations

import struct

from crc32c import crc32c

from eventstore.chunks.front import Segment
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import CRC_FROM, MARK, PREFIX, PREFIX_BYTES, TRAILER, TRAILER_MARK

OVERHEAD = PREFIX_BYTES + TRAILER.size


def sealed(raw: bytearray | bytes) -> bytes:
    """The record with the CRC that belongs to its bytes."""
    made = bytearray(raw)
    struct.pack_into("<I", made, 2, crc32c(bytes(made[CRC_FROM:])))
    return bytes(made)


def record(sequence: int, body: bytes = b"body", *, durable: int = RECORDS_FROM, count: int = 1, epoch: int = 1) -> bytes:
    """A record with a header of nothing but the prefix."""
    length = PREFIX_BYTES + len(body) + TRAILER.size
    prefix = PREFIX.pack(MARK, PREFIX_BYTES - 2, 0, 0, length, durable, sequence, epoch, count)
    return sealed(prefix + body + TRAILER.pack(TRAILER_MARK, length))


def crc_of(raw: bytes) -> int:
    crc: int = struct.unpack_from("<I", raw, 2)[0]
    return crc


def segment(chunk: int, offset: int, first_sequence: int, *records: bytes, begins: bool = False) -> Segment:
    """The records as a segment, each taking one sequence number."""
    return Segment(
        chunk, offset, first_sequence, first_sequence + len(records), begins, list(records),
        offset + sum(map(len, records)), sum(map(crc_of, records)),
    )  # fmt: skip
