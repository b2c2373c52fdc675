"""Records of commits and messages, encoded and decoded in the slow and obvious way, straight from docs/PROTOCOL.md, to compare
the fast code with.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from eventstore import flat
from eventstore.model import Event, NewEvent

HEADER = struct.Struct("<BBIHIIQIIqQBBHI")
MESSAGE_HEADER = struct.Struct("<BBIHIIQIIqQQIHHII")


def make_record(
    aggregate_id: str,
    command_id: str,
    events: Sequence[NewEvent],
    *,
    sequence: int = 1,
    first_version: int = 1,
    time: int = 1_700_000_000_000_000,
) -> bytes:
    """Returns one commit record."""
    ids = b"".join(bytes((0xD9, len(raw))) + raw for raw in (aggregate_id.encode(), command_id.encode()))
    content = ids + b"".join(flat.encode(event) for event in events)
    length = HEADER.size + len(content) + 5
    header = HEADER.pack(
        0xC4, 54, 0, 0, length, 0, sequence, 1, len(events), time, first_version,
        len(aggregate_id.encode()), len(command_id.encode()), 0, 0,
    )  # fmt: skip
    record = header + content + b"\xce" + length.to_bytes(4, "big")
    return record[:2] + crc32c(record[6:]).to_bytes(4, "little") + record[6:]


def make_message(
    topic: str, body: bytes, *, key: str | None = None, tag: str | None = None, queue: int = 0, offset: int = 0,
    position: int = (1 << 32) + 4096, node: int = 1, properties: bytes | None = None,
) -> bytes:  # fmt: skip
    """Returns one message record."""
    values = flat.encode((tag, key, topic, body, properties))
    length = MESSAGE_HEADER.size + len(values) + 5
    hashes = [0 if text is None else crc32c(text.encode()) for text in (tag, key)]
    header = MESSAGE_HEADER.pack(
        0xC4, 70, 0, 0, length, 0, offset + 1, 1, 1, 1_700_000_000_000_000, offset, position, 1, queue, node, *hashes
    )
    record = header + values + b"\xce" + length.to_bytes(4, "big")
    return record[:2] + crc32c(record[6:]).to_bytes(4, "little") + record[6:]


def reference_events(records: bytes) -> list[Event]:
    """Returns the events of a page, record by record and event by event."""
    events = []
    position = 0
    while position < len(records):
        fields = HEADER.unpack_from(records, position)
        length, sequence, count, time, first_version = fields[4], fields[6], fields[8], fields[9], fields[10]
        values = flat.decode_trusted(records[position : position + length], 4 + 4 * count)
        for place in range(count):
            format_, type_, data, metadata = values[3 + 4 * place : 7 + 4 * place]
            events.append(
                tuple.__new__(
                    Event,
                    (values[1], first_version + place, type_, data, metadata, values[2], time, sequence + place, format_),
                )
            )
        position += length
    return events
