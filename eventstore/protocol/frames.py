"""Frames: a length of four bytes, little endian, and that many bytes of payload.

How the network splits the bytes does not change the result. Whole frames are sliced from a piece. The pieces of a longer frame
are kept and joined once, when it is complete, so that the cost is linear; tiny pieces are merged, so that a frame sent byte by
byte takes no more memory than another one. A bad length is refused before any of its bytes are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from eventstore.errors import ProtocolError
from eventstore.flat import Scalar, pack
from eventstore.protocol.limits import FRAME_BYTES_MAX

LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = LENGTH.size
_COPY_BYTES_MAX: Final = 4096  # up to here, slicing and joining bytes is faster than a memoryview of them
_MERGED_BYTES_MAX: Final = 1024  # an object for each smaller piece would cost more than its content
# The first words of HTTP, read as lengths: by far the most frequent protocol to reach the wrong port.
_HTTP: Final = frozenset(LENGTH.unpack(word)[0] for word in (b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI"))


class FrameReader:
    """Splits bytes into payloads. Use one per connection.

    Attributes:
        buffered_bytes: the bytes received of an incomplete frame.
        failed: why nothing more can be read.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pieces: list[bytes | bytearray] = []
        self.buffered_bytes = 0
        self._wanted_bytes = LENGTH_BYTES
        self.failed: ProtocolError | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the payloads that `data` completes, in order.

        A bad length after good frames sets `failed`: handle the frames, then close the connection.

        Raises:
            ProtocolError: the bytes begin with a bad length, or an earlier length was bad.
        """
        if self.failed is not None:
            raise self.failed
        if self._pieces:
            self._keep(data)
            if self.buffered_bytes < self._wanted_bytes:
                return []
            if self.buffered_bytes == self._wanted_bytes > LENGTH_BYTES:
                return [self._joined(LENGTH_BYTES)]  # the usual case of a large frame: one copy instead of two
            data = self._joined(0)
        payloads: list[bytes] = []
        unpack, limit = LENGTH.unpack_from, self._frame_bytes_max
        position, size = 0, len(data)
        while size - position >= LENGTH_BYTES:
            (length,) = unpack(data, position)
            if not 0 < length <= limit:
                self.failed = bad_length(length, limit)
                if not payloads:
                    raise self.failed
                return payloads
            following = position + LENGTH_BYTES + length
            if following == size and not position:
                self._wanted_bytes = LENGTH_BYTES
                return [data[LENGTH_BYTES:]]  # one whole frame: most have no other
            if following > size:
                self._wanted_bytes = LENGTH_BYTES + length
                break
            payloads.append(data[position + LENGTH_BYTES : following])
            position = following
        else:
            self._wanted_bytes = LENGTH_BYTES
        if position < size:
            self._keep(data[position:] if position else data)
        return payloads

    def _keep(self, piece: bytes) -> None:
        self.buffered_bytes += len(piece)
        if len(piece) >= _MERGED_BYTES_MAX:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def _joined(self, start: int) -> bytes:
        """Returns the kept bytes from `start` on, in one piece."""
        pieces, self._pieces, self.buffered_bytes = self._pieces, [], 0
        if len(pieces[0]) < start:
            return b"".join(pieces)[start:]
        return b"".join((memoryview(pieces[0])[start:], *pieces[1:]))

    def allow(self, frame_bytes_max: int) -> None:
        """Raises the limit of a frame to `frame_bytes_max`."""
        assert frame_bytes_max >= self._frame_bytes_max
        self._frame_bytes_max = frame_bytes_max


def bad_length(length: int, limit: int) -> ProtocolError:
    """Returns the error for a frame that is empty or too long."""
    if length in _HTTP:
        return ProtocolError(
            "the peer speaks HTTP, which is not the protocol of an event store; check the address, and who uses it",
            field="frame length",
            limit=limit,
            value=length,
        )
    return ProtocolError(
        f"a frame of {length} bytes, allowed are 1 to {limit}", field="frame length", limit=limit, value=length
    )


def encode_frame(request_id: int, code: int, values: Sequence[Scalar]) -> bytes:
    """Returns the frame of a message.

    Raises:
        ProtocolError: it is larger than the protocol allows.
    """
    packed = pack((request_id, code, *values))
    count = len(values) + 2
    skipped = 1 if count < 16 else 3 if count < 65536 else 5  # the array header, which a flat payload does not have
    length = len(packed) - skipped
    if length > FRAME_BYTES_MAX:
        raise bad_length(length, FRAME_BYTES_MAX)
    if length <= _COPY_BYTES_MAX:
        return LENGTH.pack(length) + packed[skipped:]
    return b"".join((LENGTH.pack(length), memoryview(packed)[skipped:]))
