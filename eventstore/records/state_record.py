"""The state record: the first record of every message chunk, with the next offset of each queue when the chunk was begun.

With it a chunk can be read without the chunks before it: recovery scans only the last chunk, the oldest remaining chunk says
where each queue begins, and a queue keeps its offsets even after all its messages were deleted.

It has the header of a message with topic id 0, count 0, and the time of the last message before it. Its body is an array of
entries, one for each queue that ever held a message:

     0          4       8              16
    +----------+-------+--------------+
    | topic id | queue | next offset  |
    +----------+-------+--------------+
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, cast

from eventstore import flat
from eventstore.checksum import crc32c
from eventstore.chunks.layout import FieldLayout
from eventstore.chunks.record import MARK, THROUGH_CRC, TRAILER, TRAILER_MARK
from eventstore.records.message import AFTER_CRC, FIXED_BYTES, HEADER_BYTES, VALUES

ENTRY: Final = FieldLayout(("topic_id", "I"), ("queue", "I"), ("next_offset", "Q"))
QueueKey: TypeAlias = tuple[int, int]
"""(topic id, queue number)."""


def encode_body(offsets: Iterable[tuple[QueueKey, int]]) -> bytes:
    """Returns the bytes between header and trailer."""
    entries = b"".join(ENTRY.struct.pack(topic, queue, offset) for (topic, queue), offset in offsets if offset)
    return flat.encode((None, None, "", entries, None))


def frame(
    body: bytes, *, witness: int, durable: int, number: int, epoch: int, time: int, position: int, node: int
) -> tuple[bytes, int]:
    """Returns the record and its CRC. `number`: of the next message."""
    length = FIXED_BYTES + len(body)
    rest = b"".join(
        (
            AFTER_CRC.pack(witness, length, durable, number, epoch, 0, time, 0, position, 0, 0, node, 0, 0),
            body,
            TRAILER.struct.pack(TRAILER_MARK, length),
        )
    )
    crc = crc32c(rest)
    return THROUGH_CRC.pack(MARK, HEADER_BYTES - 2, crc) + rest, crc


def decode(record: bytes) -> dict[QueueKey, int]:
    """Returns the next offset of each queue from a record whose CRC was checked."""
    entries = cast(bytes, flat.decode_trusted(record, VALUES)[4])
    return {(topic, queue): offset for topic, queue, offset in ENTRY.struct.iter_unpack(entries)}
