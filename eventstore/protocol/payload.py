"""Payloads from outside: flat msgpack with a bound on what decoding it can allocate.

Three bounds work together. Non-empty arrays, maps and extensions are refused by their header; empty ones by a hook, at
the first of them (16 MB of empty maps would otherwise be a gigabyte of dicts); and no more values are taken than a
frame may hold.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NoReturn

import msgpack

from eventstore.flat import Malformed, Scalar
from eventstore.protocol.limits import FRAME_BYTES_MAX, VALUES_PER_FRAME_MAX

_KEPT_BUFFER_BYTES_MAX: Final = 1024 * 1024


def _refuse(*_: object) -> NoReturn:
    raise ValueError("arrays, maps and extensions are not allowed")


class PayloadDecoder:
    """Decodes any number of payloads, one after the other. Share one among all connections of an event loop.

    Not thread-safe. Its buffer is as large as a frame at worst, and is given back after a large one.
    """

    def __init__(self, values_max: int = VALUES_PER_FRAME_MAX) -> None:
        self._values_max = values_max
        self._renew()

    def _renew(self) -> None:
        self._consumed = 0
        self._unpacker = msgpack.Unpacker(
            use_list=False,
            max_buffer_size=FRAME_BYTES_MAX,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            list_hook=_refuse,
            object_hook=_refuse,
            ext_hook=_refuse,
            unicode_errors="surrogateescape",  # a bad id is then one refused request, not a broken payload
        )

    def decode(self, payload: bytes) -> list[Scalar]:
        """All values of the payload.

        Raises:
            Malformed: it is truncated, holds too many values, or anything but scalars.
        """
        unpacker = self._unpacker
        size = len(payload)
        try:
            unpacker.feed(payload)
            values: list[Scalar] = list(islice(unpacker, self._values_max))
        except Exception as error:  # msgpack raises ValueError, its own classes and BufferFull alike
            self._renew()
            raise Malformed(f"not flat msgpack: {str(error) or type(error).__name__}") from None
        self._consumed += size
        if unpacker.tell() != self._consumed:
            self._renew()
            raise Malformed(f"the last value is cut off, or there are more than {self._values_max} values")
        if size > _KEPT_BUFFER_BYTES_MAX:
            self._renew()
        return values


def request_id_of(payload: bytes) -> int:
    """The request id that a payload begins with; 0 where it cannot be read."""
    unpacker = msgpack.Unpacker(max_array_len=0, max_map_len=0, max_ext_len=0, list_hook=_refuse, object_hook=_refuse)
    unpacker.feed(payload[:9])
    try:
        first = next(unpacker)
    except Exception:  # whatever is wrong with it will be said about the payload as a whole
        return 0
    return first if first.__class__ is int and first >= 0 else 0
