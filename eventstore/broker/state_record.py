"""The state record: the first record of every message chunk, which says where each queue stood when the chunk was begun.

With it a chunk can be read without those before it: a recovery scans the last chunk alone, the first chunk that was not
deleted says where each queue begins, and a queue keeps its offsets even when all its messages were deleted.

It has the header of a message with topic id 0, count 0, and the time of the last message before it. Its body is an array
of entries, one for each queue that had ever taken a message:

     0          4       8              16
    +----------+-------+--------------+
    | topic id | queue | next offset  |
    +----------+-------+--------------+
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias, cast

from crc32c import crc32c

from eventstore import flat
from eventstore.broker.message import AFTER_CRC, FIXED_BYTES, HEADER_BYTES, THROUGH_CRC, VALUES
from eventstore.chunks.record import MARK, TRAILER, TRAILER_MARK

ENTRY: Final = struct.Struct("<IIQ")
QueueKey: TypeAlias = tuple[int, int]
"""(topic id, queue number)."""


def encode_body(offsets: Iterable[tuple[QueueKey, int]]) -> bytes:
    """What stands between header and trailer."""
    entries = b"".join(ENTRY.pack(topic, queue, offset) for (topic, queue), offset in offsets if offset)
    return flat.encode((None, None, "", entries, None))


def frame(body: bytes, *, durable: int, number: int, epoch: int, time: int, position: int, node: int) -> tuple[bytes, int]:
    """The record, and its CRC. `number`: that of the message behind it."""
    length = FIXED_BYTES + len(body)
    rest = b"".join(
        (
            AFTER_CRC.pack(length, durable, number, epoch, 0, time, 0, position, 0, 0, node, 0, 0),
            body,
            TRAILER.pack(TRAILER_MARK, length),
        )
    )
    crc = crc32c(rest)
    return THROUGH_CRC.pack(MARK, HEADER_BYTES - 2, crc) + rest, crc


def decode(record: bytes) -> dict[QueueKey, int]:
    """The next offset of each queue, out of a record whose CRC was checked."""
    entries = cast(bytes, flat.decode_trusted(record, VALUES)[4])
    return {(topic, queue): offset for topic, queue, offset in ENTRY.iter_unpack(entries)}
