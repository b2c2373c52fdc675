"""The bytes of an event of the model, as a store would write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from eventstore.chunks.record import MARK, THROUGH_CRC, TRAILER, TRAILER_MARK
from eventstore.model import NewEvent
from eventstore.records.commit import (
    AFTER_CRC,
    FIXED_BYTES,
    HEADER_BYTES,
    ID_PREFIX,
    IN_JOINT_COMMIT,
    LONG_AFTER_CRC,
    LONG_HEADER_BYTES,
    LONG_MARK,
    NO_FINGERPRINT,
)
from tests.cluster.simulation.disk import RECORD_BYTES, Record
from tests.store.stepped import events_bytes

_NAME: Final = b"a"
_NUMBER_BYTES: Final = 10
_SOME: Final = 300
_BESIDE_DATA: Final = len(events_bytes([NewEvent("Happened", bytes(_SOME))])) - _SOME
_DATA_BYTES: Final = RECORD_BYTES - FIXED_BYTES - len(_NAME) - _NUMBER_BYTES - _BESIDE_DATA
_EVENT: Final = events_bytes([NewEvent("Happened", bytes(_DATA_BYTES))])
_SHORTER_EVENT: Final = events_bytes([NewEvent("Happened", bytes(_DATA_BYTES - LONG_HEADER_BYTES + HEADER_BYTES))])


def framed(record: Record, sequence: int, witness: int = 0, durable: int = 0, joint: tuple[int, int] | None = None) -> bytes:
    """Returns a commit of one event, named by the record's number, as the appender of a store frames it. `joint`: of how many
    records of a joint commit it is the one at which place.
    """
    epoch, number = record
    command = b"%0*d" % (_NUMBER_BYTES, number)
    fields = witness, RECORD_BYTES, durable, sequence, epoch, 1, 1, sequence, len(_NAME), len(command), NO_FINGERPRINT
    if joint is None:
        header, event, own_mark = AFTER_CRC.pack(*fields), _EVENT, HEADER_BYTES - 2
    else:
        records, place = joint
        digest = (sequence - place).to_bytes(16, "little")
        header = LONG_AFTER_CRC.pack(*fields, IN_JOINT_COMMIT, 0, records, place, records, place, digest)
        event, own_mark = _SHORTER_EVENT, LONG_MARK
    return _joined(own_mark, header, _NAME, command, event, RECORD_BYTES)


def tagged(record: Record, sequence: int, aggregate: str, tags: Sequence[str]) -> bytes:
    """Returns a commit of one event with these tags, named by the record's number."""
    epoch, number = record
    name, command, event = aggregate.encode(), b"%d" % number, events_bytes([NewEvent("Happened", b"", None, tags)])
    length = FIXED_BYTES + len(name) + len(command) + len(event)
    fields = 0, length, 0, sequence, epoch, 1, 1, sequence, len(name), len(command), NO_FINGERPRINT
    return _joined(HEADER_BYTES - 2, AFTER_CRC.pack(*fields), name, command, event, length)


def _joined(own_mark: int, header: bytes, name: bytes, command: bytes, event: bytes, length: int) -> bytes:
    trailer = TRAILER.struct.pack(TRAILER_MARK, length)
    body = b"".join((header, ID_PREFIX[len(name)], name, ID_PREFIX[len(command)], command, event, trailer))
    return THROUGH_CRC.pack(MARK, own_mark, crc32c(body)) + body
