"""Decodes payloads, the content of frames, within bounds (see `flat.Decoder`)."""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgpack

from eventstore.flat import Decoder, Malformed, Scalar, refuse_container
from eventstore.protocol.limits import FRAME_BYTES_MAX, VALUES_PER_FRAME_MAX

_UINT64_BYTES: Final = 9


def payload_decoder(values_max: int = VALUES_PER_FRAME_MAX) -> Decoder:
    """Returns a decoder for any number of payloads. It is not thread-safe."""
    return Decoder(FRAME_BYTES_MAX, values_max)


def decode_head(payload: bytes, size_bytes: int, values_max: int) -> list[Scalar]:
    """Returns the first values, up to `values_max`, that end within `size_bytes`.

    Raises:
        Malformed: one of them is not a scalar.
    """
    unpacker = msgpack.Unpacker(
        max_buffer_size=size_bytes, max_array_len=0, max_map_len=0, list_hook=refuse_container, object_hook=refuse_container
    )
    unpacker.feed(payload[:size_bytes])
    try:
        return list(islice(unpacker, values_max))
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise Malformed(f"not flat msgpack: {str(error) or type(error).__name__}") from None


def request_id_of(payload: bytes) -> int:
    """Returns the request id that a payload begins with; 0 if it cannot be read."""
    try:
        values = decode_head(payload, _UINT64_BYTES, 1)
    except Malformed:  # the error of the whole payload is reported by the caller
        values = []
    first = values[0] if values else 0
    return first if first.__class__ is int and first >= 0 else 0
