"""Frames: a length of four bytes, little endian, and that many bytes of payload.

The reader's result does not depend on how the bytes were cut into pieces on their way. It takes whole frames out of a
piece by slicing. Of a frame in several pieces it keeps the pieces and joins them once, when the last one is there, so
that the cost stays linear; tiny pieces are merged, so that a frame sent byte by byte takes no more memory than any
other. A bad length is refused before anything of it is stored.
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
_MERGED_BYTES_MAX: Final = 1024  # an object of its own for each smaller piece would cost more than its content
# The words that HTTP begins with, as lengths: by far the most frequent guest at the wrong port.
_HTTP: Final = frozenset(LENGTH.unpack(word)[0] for word in (b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI"))
_packb = msgpack.packb


class FrameReader:
    """Bytes in, payloads out. One per connection."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pieces: list[bytes | bytearray] = []
        self._kept_bytes = 0
        self._wanted_bytes = LENGTH_BYTES
        self.failed: ProtocolError | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes, in order.

        A bad length behind good frames sets `failed`: handle the frames, then close the connection.

        Raises:
            ProtocolError: the bytes begin with a bad length, or one was met before.
        """
        if self.failed is not None:
            raise self.failed
        if self._pieces:
            self._keep(data)
            if self._kept_bytes < self._wanted_bytes:
                return []
            if self._kept_bytes == self._wanted_bytes > LENGTH_BYTES:
                return [self._joined(LENGTH_BYTES)]  # as a rule, for large frames: one copy and not two
            data = self._joined(0)
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
                self.failed = bad_length(length, limit)
                return payloads
            following = position + LENGTH_BYTES + length
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
        self._kept_bytes += len(piece)
        if len(piece) >= _MERGED_BYTES_MAX:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def _joined(self, start: int) -> bytes:
        """What was kept, from byte `start` on, all of it in one piece."""
        pieces, self._pieces, self._kept_bytes = self._pieces, [], 0
        if len(pieces[0]) < start:
            return b"".join(pieces)[start:]
        return b"".join((memoryview(pieces[0])[start:], *pieces[1:]))

    def allow(self, frame_bytes_max: int) -> None:
        """Takes frames of up to `frame_bytes_max` bytes from now on, no fewer than before."""
        assert frame_bytes_max >= self._frame_bytes_max
        self._frame_bytes_max = frame_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """How much of an incomplete frame has arrived."""
        return self._kept_bytes


def bad_length(length: int, limit: int) -> ProtocolError:
    """The error about a frame that is empty or too long."""
    if length in _HTTP:
        return ProtocolError(
            "the other side speaks HTTP, which is not the protocol of an event store; check the address, and who uses it",
            field="frame length", limit=limit, value=length,
        )  # fmt: skip
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
        raise bad_length(length, FRAME_BYTES_MAX)
    if length <= _COPY_BYTES_MAX:
        return LENGTH.pack(length) + packed[skipped:]
    return b"".join((LENGTH.pack(length), memoryview(packed)[skipped:]))
