"""The last message that a member was handed of a queue, as far as it takes to know it again.

An offset alone does not tell: a broker that lost the end of its log gives the same offsets to other messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from eventstore.chunks.record import TRAILER
from eventstore.errors import ProtocolError
from eventstore.records.message import FIXED_BYTES, HEADER

_FIELDS: Final = HEADER.part("crc", "time", "queue_offset", "position")


class RecordMark(NamedTuple):
    """`crc`: of the whole record; `time`: when the broker accepted it; `position`: in the log."""

    crc: int
    time: int
    offset: int
    position: int


def reached_by(records: bytes | memoryview) -> RecordMark:
    """Returns the last of these whole message records. Raises ProtocolError."""
    size = len(records)
    _, length = TRAILER.struct.unpack_from(records, size - TRAILER.size) if size >= FIXED_BYTES else (0, 0)
    if not FIXED_BYTES <= length <= size:
        raise ProtocolError(f"records of {size} bytes end with one of {length}", field="records")
    return RecordMark(*_FIELDS.unpack_from(records, size - length))
