"""Messages that were asked for, by where the queue's entries say they lie: cut out of what was read, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from eventstore.broker.message import HEADER, HEADER_BYTES, chunk_of
from eventstore.broker.state_record import QueueKey
from eventstore.chunks import record
from eventstore.chunks.record import CRC_FROM, MARK
from eventstore.chunks.slab import Ints, gather
from eventstore.errors import Corrupt

_TOGETHER_MIN: Final = 16  # a few are checked sooner one by one
_FIELDS: Final = np.dtype(
    {
        "names": ["marks", "crc", "length", "offset", "position", "topic", "queue"],
        "formats": ["<u2", "<u4", "<u4", "<u8", "<u8", "<u4", "<u2"],
        "offsets": [0, 2, 8, 40, 48, 56, 60],
        "itemsize": HEADER_BYTES,
    }
)
_MARKS: Final = MARK | (HEADER_BYTES - 2) << 8  # the two bytes in front of the checksum, which it does not cover


class Asked(NamedTuple):
    """Messages of one queue in one chunk, in the order of the log: offsets in the queue, positions in the log, bytes."""

    key: QueueKey
    offsets: Sequence[int]
    positions: Sequence[int]
    lengths: Sequence[int]

    def part(self, first: int, last: int) -> Asked:
        return Asked(self.key, self.offsets[first:last], self.positions[first:last], self.lengths[first:last])

    def cut(self, data: bytes | memoryview, starts: Ints, ends: Ints, file: str) -> list[bytes]:
        """The records, which begin and end at these places of `data`. `file`: what errors call the chunk.

        Raises:
            Corrupt: one is damaged, cut off, or another message.
        """
        places = list(zip(starts.tolist(), ends.tolist(), strict=True))
        found = [bytes(data[start:end]) for start, end in places]
        if len(places) < _TOGETHER_MIN or len(data) < places[-1][1] or not self._all_good(data, starts, ends):
            for raw, offset, position, length in zip(found, self.offsets, self.positions, self.lengths, strict=True):
                self._check(raw, offset, position, length, file)
        return found

    def _all_good(self, data: bytes | memoryview, starts: Ints, ends: Ints) -> bool:
        """Whether each is the message that was asked for, undamaged: column by column, a sixth of what one by one takes."""
        lengths = ends - starts
        if lengths.min() < HEADER_BYTES:
            return False
        fields = gather(data, starts, _FIELDS)
        crcs = [crc32c(data[start:end]) for start, end in zip((starts + CRC_FROM).tolist(), ends.tolist(), strict=True)]
        return bool(
            (fields["marks"] == _MARKS).all()
            and (fields["crc"] == np.array(crcs, np.uint32)).all()
            and (fields["length"] == lengths).all()
            and (fields["offset"] == np.array(self.offsets, np.uint64)).all()
            and (fields["position"] == np.array(self.positions, np.uint64)).all()
            and (fields["topic"] == self.key[0]).all()
            and (fields["queue"] == self.key[1]).all()
        )

    def _check(self, raw: bytes, offset: int, position: int, length: int, file: str) -> None:
        _, byte_offset = chunk_of(position)
        if len(raw) != length or length < HEADER_BYTES:
            raise Corrupt(file, byte_offset + len(raw), "the file ends here; a message was indexed beyond")
        fault = record.check(memoryview(raw), HEADER_BYTES)
        if fault is not None:
            raise Corrupt(file, byte_offset, fault)
        own_offset, own_position, topic, queue = HEADER.unpack_from(raw)[10:14]
        if (topic, queue) != self.key or own_offset != offset or own_position != position:
            raise Corrupt(file, byte_offset, "a message that belongs elsewhere")
