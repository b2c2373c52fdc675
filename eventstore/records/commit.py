"""Decodes the commit record: the events of one command on one aggregate, the same bytes on disk, on the wire and in Spark.

     0 .. 28    as in `chunks.record`; sequence is the first event's
     28         32        40              48              49             50            56
    +----------+---------+---------------+---------------+--------------+-------------+
    | events   | time µs | first version | id length     | command len  | fingerprint |
    +----------+---------+---------------+---------------+--------------+-------------+
    | 0xD9 n  aggregate id | 0xD9 n  command id | events: format, type, data, metadata; ... | 0xCE length |

The record is a flat msgpack sequence: bin, str, str, then four values per event (format: bit 0 data is JSON, bit 1 metadata is
JSON; type: str; data: bin; metadata: bin or nil), uint32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eventstore import flat
from eventstore.chunks.record import PREFIX, TRAILER, after_crc
from eventstore.fields import check_text
from eventstore.model import (
    ID_BYTES_MAX,
    Event,
)

HEADER: Final = PREFIX.extended(
    ("time", "q"), ("first_version", "Q"), ("id_length", "B"), ("command_length", "B"), ("fingerprint", "6s")
)
HEADER_BYTES: Final = HEADER.size
AFTER_CRC: Final = after_crc(HEADER)
ID_PREFIX: Final = tuple(bytes((0xD9, length)) for length in range(256))
FIXED_BYTES: Final = HEADER_BYTES + 4 + TRAILER.size  # the size of a record without its ids and events

NO_FINGERPRINT: Final = bytes(HEADER["fingerprint"].size)
"""The fingerprint of a commit that was not made for a command, or that an older program wrote."""

_VIEW: Final = HEADER.part(
    "length", "sequence", "epoch", "count", "time", "first_version", "id_length", "command_length", "fingerprint"
)

_FINGERPRINTS: Final = HEADER.part("length", "sequence", "fingerprint")

assert HEADER_BYTES == 56


@dataclass(frozen=True, slots=True)
class CommitView:
    """The fields of a commit record.

    Attributes:
        events: the bytes between the command id and the trailing length.
        fingerprint: of the command the commit was made for, or `NO_FINGERPRINT`.
    """

    sequence: int
    epoch: int
    count: int
    time: int
    first_version: int
    aggregate_id: str
    command_id: str
    events: bytes
    length: int
    fingerprint: bytes

    @property
    def last_version(self) -> int:
        return self.first_version + self.count - 1

    @property
    def last_sequence(self) -> int:
        return self.sequence + self.count - 1


def decode(record: bytes | memoryview, position: int = 0) -> CommitView:
    """Returns the commit whose record, already checked, begins at `position`."""
    length, sequence, epoch, count, time, first_version, id_length, command_length, fingerprint = _VIEW.unpack_from(
        record, position
    )
    ids = position + HEADER_BYTES + 2
    command = ids + id_length + 2
    events = command + command_length
    return CommitView(
        sequence,
        epoch,
        count,
        time,
        first_version,
        str(record[ids : ids + id_length], "utf-8"),
        str(record[command:events], "utf-8"),
        bytes(record[events : position + length - TRAILER.size]),
        length,
        fingerprint,
    )


def fingerprints_of(records: bytes | memoryview) -> dict[int, bytes]:
    """Returns the fingerprints of commits in a page of whole records that have one, by the sequence of their first events."""
    found, position = dict[int, bytes](), 0
    while position < len(records):
        length, sequence, fingerprint = _FINGERPRINTS.unpack_from(records, position)
        if fingerprint != NO_FINGERPRINT:
            found[sequence] = fingerprint
        position += length
    return found


def to_events(view: CommitView) -> list[Event]:
    """Returns the commit's events. For single commits; `event_page.decode_page` decodes many."""
    values = flat.decode_trusted(view.events, 4 * view.count)
    make = tuple.__new__
    return [
        make(
            Event,
            (
                view.aggregate_id,
                view.first_version + place,
                values[at + 1],
                values[at + 2],
                values[at + 3],
                view.command_id,
                view.time,
                view.sequence + place,
                values[at],
            ),
        )
        for place, at in enumerate(range(0, 4 * view.count, 4))
    ]


def check_id(name: str, value: str) -> bytes:
    """Returns the UTF-8 bytes of an aggregate or command id.

    Raises:
        InvalidArgument: it is empty, too long, or not valid Unicode.
    """
    return check_text(name, value).encode()


def is_id(value: object) -> bool:
    """Whether `value` may be an aggregate or command id."""
    try:
        return isinstance(value, str) and 0 < len(value.encode()) <= ID_BYTES_MAX
    except UnicodeEncodeError:
        return False
