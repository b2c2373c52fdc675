"""Frames: a length of four bytes, little endian, and that many bytes of payload.

The reader's result does not depend on how the bytes were cut into pieces on their way. It takes whole frames out of a
piece by slicing, and copies only what is left of a frame that has not arrived completely; a frame in many pieces is
collected in one growing buffer, so that the cost stays linear. A bad length is refused before anything of it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgpack

from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.protocol.limits import FRAME_BYTES_MAX

LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = LENGTH.size
_COPY_BYTES_MAX: Final = 4096  # up to here, slicing and joining bytes is faster than a memoryview of them
_packb = msgpack.packb


class FrameReader:
    """Bytes in, payloads out. One per connection."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()
        self._wanted = LENGTH_BYTES
        self.failed: ProtocolError | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes, in order.

        A bad length behind good frames sets `failed`: handle the frames, then close the connection.

        Raises:
            ProtocolError: the bytes begin with a bad length, or one was met before.
        """
        if self.failed is not None:
            raise self.failed
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return []
            data = bytes(self._partial)
            self._partial = bytearray()
        payloads = self._split(data)
        if self.failed is not None and not payloads:
            raise self.failed
        return payloads

    def _split(self, data: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        unpack, limit = LENGTH.unpack_from, self._frame_bytes_max
        position, size = 0, len(data)
        while size - position >= LENGTH_BYTES:
            (length,) = unpack(data, position)
            if not 0 < length <= limit:
                self.failed = _bad_length(length, limit)
                return payloads
            following = position + LENGTH_BYTES + length
            if following > size:
                self._wanted = LENGTH_BYTES + length
                break
            payloads.append(data[position + LENGTH_BYTES : following])
            position = following
        else:
            self._wanted = LENGTH_BYTES
        if position < size:
            self._partial += data[position:] if position else data
        return payloads

    @property
    def buffered_bytes(self) -> int:
        """How much of an incomplete frame has arrived."""
        return len(self._partial)


def _bad_length(length: int, limit: int) -> ProtocolError:
    return ProtocolError(
        f"a frame of {length} bytes, allowed are 1 to {limit}", field="frame length", limit=limit, value=length
    )


def encode_frame(request_id: int, code: int, values: Sequence[Scalar]) -> bytes:
    """The frame of one message.

    Raises:
        ProtocolError: it is larger than the protocol allows.
    """
    packed: bytes = _packb((request_id, code, *values))
    count = len(values) + 2
    skipped = 1 if count < 16 else 3 if count < 65536 else 5  # the array header, which flat payloads do without
    length = len(packed) - skipped
    if length > FRAME_BYTES_MAX:
        raise _bad_length(length, FRAME_BYTES_MAX)
    if length <= _COPY_BYTES_MAX:
        return LENGTH.pack(length) + packed[skipped:]
    return b"".join((LENGTH.pack(length), memoryview(packed)[skipped:]))
