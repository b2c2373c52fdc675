"""Requested records: cut out of the bytes that were read, at the places the queue's entries give, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from eventstore.arrays import np
from eventstore.checksum import crc32c
from eventstore.chunks import record
from eventstore.chunks.record import CRC_FROM, MARK
from eventstore.chunks.slab import Ints, gather
from eventstore.errors import Corrupt
from eventstore.records.message import FRAMING, HEADER, HEADER_BYTES, chunk_of
from eventstore.records.state_record import QueueKey

_TOGETHER_MIN: Final = 16  # fewer are checked faster one by one
_FIELDS: Final = ("mark", "own_mark", "crc", "length", "queue_offset", "position", "topic_id", "queue")
_OWN_PLACE: Final = HEADER.part("queue_offset", "position", "topic_id", "queue")


class RequestedRecords(NamedTuple):
    """Messages of one queue in one chunk, in the order of the log: offsets in the queue, positions in the log, bytes."""

    key: QueueKey
    offsets: Sequence[int]
    positions: Sequence[int]
    lengths: Sequence[int]

    def part(self, first: int, last: int) -> RequestedRecords:
        return RequestedRecords(self.key, self.offsets[first:last], self.positions[first:last], self.lengths[first:last])

    def cut(self, data: bytes | memoryview, starts: Ints, ends: Ints, file: str) -> list[bytes]:
        """Returns the records that begin and end at these places of `data`. `file`: the name of the chunk in errors.

        Raises:
            Corrupt: a record is damaged, cut off, or another message.
        """
        places = list(zip(starts.tolist(), ends.tolist(), strict=True))
        found = [bytes(data[start:end]) for start, end in places]
        if len(places) < _TOGETHER_MIN or len(data) < places[-1][1] or not self._all_good(data, starts, ends):
            for raw, offset, position, length in zip(found, self.offsets, self.positions, self.lengths, strict=True):
                self._check(raw, offset, position, length, file)
        return found

    def _all_good(self, data: bytes | memoryview, starts: Ints, ends: Ints) -> bool:
        """Returns whether all are the requested messages, undamaged. By columns: takes a sixth of checking one by one."""
        lengths = ends - starts
        if lengths.min() < HEADER_BYTES:
            return False
        fields = gather(data, starts, HEADER.dtype(*_FIELDS))
        crcs = [crc32c(data[start:end]) for start, end in zip((starts + CRC_FROM).tolist(), ends.tolist(), strict=True)]
        return bool(
            (fields["mark"] == MARK).all()
            and (fields["own_mark"] == HEADER_BYTES - 2).all()
            and (fields["crc"] == np.array(crcs, np.uint32)).all()
            and (fields["length"] == lengths).all()
            and (fields["queue_offset"] == np.array(self.offsets, np.uint64)).all()
            and (fields["position"] == np.array(self.positions, np.uint64)).all()
            and (fields["topic_id"] == self.key[0]).all()
            and (fields["queue"] == self.key[1]).all()
        )

    def _check(self, raw: bytes, offset: int, position: int, length: int, file: str) -> None:
        _, byte_offset = chunk_of(position)
        if len(raw) != length or length < HEADER_BYTES:
            raise Corrupt(file, byte_offset + len(raw), "the file ends here; a message was indexed beyond")
        fault = record.check(memoryview(raw), FRAMING)
        if fault is not None:
            raise Corrupt(file, byte_offset, fault)
        own_offset, own_position, topic, queue = _OWN_PLACE.unpack_from(raw)
        if (topic, queue) != self.key or own_offset != offset or own_position != position:
            raise Corrupt(file, byte_offset, "a message that belongs elsewhere")
