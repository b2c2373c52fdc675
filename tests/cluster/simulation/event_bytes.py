"""The bytes of an event of the model, as a store would write them."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from eventstore.chunks.record import MARK, THROUGH_CRC, TRAILER, TRAILER_MARK
from eventstore.model import NewEvent
from eventstore.records.commit import AFTER_CRC, FIXED_BYTES, HEADER_BYTES, ID_PREFIX, NO_FINGERPRINT
from tests.cluster.simulation.disk import RECORD_BYTES, Record
from tests.store.stepped import events_bytes

_NAME: Final = b"a"
_NUMBER_BYTES: Final = 10
_SOME: Final = 300
_BESIDE_DATA: Final = len(events_bytes([NewEvent("Happened", bytes(_SOME))])) - _SOME
_DATA_BYTES: Final = RECORD_BYTES - FIXED_BYTES - len(_NAME) - _NUMBER_BYTES - _BESIDE_DATA
_EVENT: Final = events_bytes([NewEvent("Happened", bytes(_DATA_BYTES))])


def framed(record: Record, sequence: int, witness: int = 0, durable: int = 0) -> bytes:
    """Returns a commit of one event, named by the record's number, as the appender of a store frames it."""
    epoch, number = record
    command = b"%0*d" % (_NUMBER_BYTES, number)
    header = AFTER_CRC.pack(
        witness, RECORD_BYTES, durable, sequence, epoch, 1, 1, sequence, len(_NAME), len(command), NO_FINGERPRINT
    )
    trailer = TRAILER.struct.pack(TRAILER_MARK, RECORD_BYTES)
    parts = (header, ID_PREFIX[len(_NAME)], _NAME, ID_PREFIX[len(command)], command, _EVENT, trailer)
    body = b"".join(parts)
    return THROUGH_CRC.pack(MARK, HEADER_BYTES - 2, crc32c(body)) + body
