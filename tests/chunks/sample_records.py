"""Makes records and segments for tests of the file layer, which does not interpret their bodies."""

from __future__ import annotations

import struct

from crc32c import crc32c

from eventstore.chunks.front import Segment
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import CRC_FROM, MARK, PREFIX, PREFIX_BYTES, TRAILER, TRAILER_MARK, Framing

FRAMING = Framing(PREFIX_BYTES)
OVERHEAD = PREFIX_BYTES + TRAILER.size


def sealed(raw: bytearray | bytes) -> bytes:
    """Returns the record with the CRC of its bytes."""
    record = bytearray(raw)
    struct.pack_into("<I", record, 2, crc32c(bytes(record[CRC_FROM:])))
    return bytes(record)


def record(sequence: int, body: bytes = b"body", *, durable: int = RECORDS_FROM, count: int = 1, epoch: int = 1) -> bytes:
    """Returns a record whose header is only the prefix."""
    length = PREFIX_BYTES + len(body) + TRAILER.size
    prefix = PREFIX.struct.pack(MARK, PREFIX_BYTES - 2, 0, 0, length, durable, sequence, epoch, count)
    return sealed(prefix + body + TRAILER.struct.pack(TRAILER_MARK, length))


def crc_of(raw: bytes) -> int:
    crc: int = struct.unpack_from("<I", raw, 2)[0]
    return crc


def segment(chunk: int, offset: int, first_sequence: int, *records: bytes, begins: bool = False) -> Segment:
    """Returns the records as a segment; each takes one sequence."""
    return Segment(
        chunk, offset, first_sequence, first_sequence + len(records), begins, list(records),
        offset + sum(map(len, records)), sum(map(crc_of, records)),
    )  # fmt: skip
