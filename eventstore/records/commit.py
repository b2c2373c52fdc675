"""Decodes the commit record: the events of one command on one aggregate, the same bytes on disk, on the wire and in Spark.

     0 .. 28    as in `chunks.record`; sequence is the first event's
     28         32        40              48              49             50            56
    +----------+---------+---------------+---------------+--------------+-------------+
    | events   | time µs | first version | id length     | command len  | fingerprint |
    +----------+---------+---------------+---------------+--------------+-------------+
    | 0xD9 n  aggregate id | 0xD9 n  command id | events: format, type, data, metadata; ... | 0xCE length |

A commit that belongs with others has a longer header, and so has what comes later; `own_mark` says which one it is:

     56      58      60             62              64           68              72
    +-------+-------+--------------+---------------+------------+---------------+-------------------+
    | flags | hints | records of   | place of this | events of  | events of the | digest of the     |
    |       |       | the commit   | one, from 0   | all        | records before| commit (16 bytes) |
    +-------+-------+--------------+---------------+------------+---------------+-------------------+

The record is a flat msgpack sequence: bin, str, str, then four values per event (format: bit 0 data is JSON, bit 1 metadata is
JSON; type: str; data: bin; metadata: bin or nil), uint32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, cast

from eventstore import flat
from eventstore.chunks.record import PREFIX, TRAILER, Framing, after_crc
from eventstore.fields import check_text
from eventstore.model import ID_BYTES_MAX, Event
from eventstore.tags import TAGGED, tags_in

HEADER: Final = PREFIX.extended(
    ("time", "q"), ("first_version", "Q"), ("id_length", "B"), ("command_length", "B"), ("fingerprint", "6s")
)
LONG_HEADER: Final = HEADER.extended(
    ("flags", "H"),
    ("hints", "H"),
    ("records", "H"),
    ("place", "H"),
    ("events", "I"),
    ("events_before", "I"),
    ("digest", "16s"),
)
HEADER_BYTES: Final = HEADER.size
LONG_HEADER_BYTES: Final = LONG_HEADER.size
LONG_MARK: Final = LONG_HEADER_BYTES - 2
AFTER_CRC: Final = after_crc(HEADER)
LONG_AFTER_CRC: Final = after_crc(LONG_HEADER)
OWN_MARK_AT: Final = HEADER["own_mark"].offset
IDS_FROM: Final = 2
"""A header's length less its `own_mark`: an `own_mark` more, and two bytes of msgpack, than where the header begins, the
aggregate id begins."""
ID_PREFIX: Final = tuple(bytes((0xD9, length)) for length in range(256))
LONG_FIXED_BYTES: Final = LONG_HEADER_BYTES + 4 + TRAILER.size
FIXED_BYTES: Final = HEADER_BYTES + 4 + TRAILER.size  # the size of a record without its ids and events

NO_FINGERPRINT: Final = bytes(HEADER["fingerprint"].size)
"""The fingerprint of a commit that was not made for a command, or that an older program wrote."""

_VIEW: Final = HEADER.part(
    "length", "sequence", "epoch", "count", "time", "first_version", "id_length", "command_length", "fingerprint"
)

_FINGERPRINTS: Final = HEADER.part("length", "sequence", "fingerprint")

_PLACE_FIELDS: Final = ("flags", "records", "place", "events", "events_before", "digest")
_PLACE: Final = LONG_HEADER.part("own_mark", *_PLACE_FIELDS, start=OWN_MARK_AT)

IN_JOINT_COMMIT: Final = 1
"""The flag of a record that is one of several of a joint commit."""

_KNOWN_FLAGS: Final = IN_JOINT_COMMIT

assert (HEADER_BYTES, LONG_HEADER_BYTES) == (56, 88)


class JointPlace(NamedTuple):
    """Where a record stands in a joint commit: one record for each of its aggregates, one after the other.

    Attributes:
        records: how many they are, 2 to 1,000.
        place: of this one among them, from 0.
        events: of all of them.
        events_before: of those before this one.
        digest: of the aggregates and what was written to each; the same in all of them.
    """

    records: int
    place: int
    events: int
    events_before: int
    digest: bytes


class UnknownFlags(ValueError):
    """A record has a flag that a reader must know, and this program does not."""


@dataclass(frozen=True, slots=True)
class CommitView:
    """The fields of a commit record.

    Attributes:
        events: the bytes between the command id and the trailing length.
        fingerprint: of the command the commit was made for, or `NO_FINGERPRINT`.
        joint: None: the commit is of one aggregate.
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
    joint: JointPlace | None = None

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
    own_mark = record[position + OWN_MARK_AT]
    ids = position + own_mark + IDS_FROM + 2
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
        None if own_mark != LONG_MARK else joint_place_of(record, position),
    )


def joint_place_of(records: bytes | memoryview, position: int = 0) -> JointPlace | None:
    """Returns where the record at `position` stands in a joint commit; None if it is the whole commit.

    Raises:
        UnknownFlags
    """
    if records[position + OWN_MARK_AT] != LONG_MARK:
        return None
    _, flags, *place = _PLACE.unpack_from(records, position + OWN_MARK_AT)
    if flags & ~_KNOWN_FLAGS:
        raise UnknownFlags(f"a record has the flags {flags:#06x}, this program knows {_KNOWN_FLAGS:#06x}; use a newer one")
    return JointPlace(*place) if flags & IN_JOINT_COMMIT else None


def first_sequence(records: bytes | memoryview, position: int = 0) -> int:
    """Returns the sequence of the first event of the record at `position`."""
    found: int = _FINGERPRINTS.unpack_from(records, position)[1]
    return found


def up_to(records: bytes, sequence: int) -> bytes:
    """Returns those of ascending records that begin at the sequence or before."""
    return records[: next((position for position, first, _ in _records_of(records) if first > sequence), len(records))]


def fingerprints_of(records: bytes | memoryview) -> dict[int, bytes]:
    """Returns the fingerprints of commits in a page of whole records that have one, by the sequence of their first events."""
    each = _records_of(records)
    return {sequence: fingerprint for _, sequence, fingerprint in each if fingerprint != NO_FINGERPRINT}


def joint_places_of(records: bytes | memoryview) -> dict[int, JointPlace]:
    """Returns the places of records in joint commits, of a page of whole records, by the sequence of their first events."""
    places = {sequence: joint_place_of(records, position) for position, sequence, _ in _records_of(records)}
    return {sequence: place for sequence, place in places.items() if place is not None}


def _records_of(records: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
    """Yields where each record of a page begins, the sequence of its first event, and its fingerprint."""
    position = 0
    while position < len(records):
        length, sequence, fingerprint = _FINGERPRINTS.unpack_from(records, position)
        yield position, sequence, fingerprint
        position += length


def _missing(records: bytes | memoryview, position: int) -> tuple[int, int]:
    try:
        joint = joint_place_of(records, position)
    except UnknownFlags:  # who reads the record says so
        return 0, 0
    return (0, 0) if joint is None else (joint.place, joint.records - 1 - joint.place)


FRAMING: Final = Framing(HEADER_BYTES, LONG_HEADER_BYTES, missing=_missing)


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


def tags_of_events(packed: bytes, count: int) -> tuple[str, ...]:
    """Returns the tags of packed events, as in a record whose CRC was checked, each once."""
    values = flat.decode_trusted(packed, 4 * count)
    tagged = [envelope for format_, envelope in zip(values[0::4], values[3::4], strict=True) if cast(int, format_) & TAGGED]
    return tuple(dict.fromkeys(chain.from_iterable(tags_in(cast(bytes, each)) for each in tagged)))


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
