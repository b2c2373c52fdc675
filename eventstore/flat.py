"""Encodes and decodes flat msgpack: a sequence of scalars (nil, bool, int, str, bin) without arrays, maps or extensions.

Records on disk and frames on the wire are both flat. That is a safety property: a small input cannot make a decoder that
refuses every non-empty array and map build a deep or huge object (16 MB of nested containers would be over a gigabyte of Python
objects). And one C call decodes a whole page of records.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NoReturn, cast

import msgpack

Scalar = str | bytes | int | bool | None

_ARRAY16: Final = 0xDC  # the header of an array with 16 to 65,535 values; one with fewer has a smaller one, of one byte
_ARRAY32: Final = struct.Struct(">BI")
_KEPT_BUFFER_BYTES_MAX: Final = 1024 * 1024
_END_BYTES: Final = 16
_packer = msgpack.Packer()
_unpackb = msgpack.unpackb


class Malformed(ValueError):
    """The bytes are not a flat msgpack sequence."""


def encode(values: Sequence[Scalar]) -> bytes:
    """Returns the encoded values. Packs one array in C and removes its header: 5x faster than packing each value."""
    packed: bytes = _packer.pack(values)
    if len(packed) > _KEPT_BUFFER_BYTES_MAX:
        _renew_packer()
    header = packed[0]
    return packed[1:] if header < _ARRAY16 else packed[3:] if header == _ARRAY16 else packed[5:]


def pack(values: Sequence[Scalar]) -> bytes:
    """Returns the values as one array. `msgpack.packb` allocates a buffer per call, which costs twice the packing."""
    packed: bytes = _packer.pack(values)
    if len(packed) > _KEPT_BUFFER_BYTES_MAX:
        _renew_packer()
    return packed


def _renew_packer() -> None:
    """Releases the buffer."""
    global _packer
    _packer = msgpack.Packer()


def encode_each(rows: Iterable[Sequence[Scalar]]) -> list[bytes]:
    """Returns `encode` of each row; rows have fewer than 16 values."""
    return [packed[1:] for packed in map(_packer.pack, rows)]


def decode_trusted(data: bytes, count: int) -> tuple[Scalar, ...]:
    """Returns exactly `count` values from bytes whose checksum was verified, or from a server the user chose to trust."""
    try:
        return cast(
            "tuple[Scalar, ...]",
            _unpackb(_ARRAY32.pack(0xDD, count) + data, use_list=False, max_array_len=count, unicode_errors="surrogateescape"),
        )
    except ValueError as error:
        raise Malformed(str(error) or type(error).__name__) from None


def refuse_container(*_: object) -> NoReturn:
    """Refuses what msgpack passes to a hook."""
    raise ValueError("arrays, maps and extensions are not allowed")


class Decoder:
    """Decodes inputs from outside, one at a time; all connections of an event loop share one.

    Three bounds work together. Non-empty containers are refused by their header; empty ones by a hook, at the first of them
    (16 MB of empty maps would otherwise be a gigabyte of dicts); and at most `values_max` values are decoded. The Unpacker
    keeps a truncated value and completes it with the bytes of the next input, which may come from another client, and its
    position does not reveal this. So a secret end mark is fed after each input and must be the last value.

    Not thread-safe. Its buffer grows to at most `size_bytes_max`, and is released after an input of more than `kept_bytes_max`.
    """

    def __init__(self, size_bytes_max: int, values_max: int, kept_bytes_max: int = _KEPT_BUFFER_BYTES_MAX) -> None:
        self._size_bytes_max, self._kept_bytes_max = size_bytes_max, kept_bytes_max
        self._values_max = values_max
        self._end = os.urandom(_END_BYTES)
        self._packed_end = msgpack.packb(self._end)
        self._renew()

    def _renew(self) -> None:
        self._unpacker = msgpack.Unpacker(
            use_list=False,
            max_buffer_size=self._size_bytes_max + len(self._packed_end),
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            list_hook=refuse_container,
            object_hook=refuse_container,
            ext_hook=refuse_container,
            unicode_errors="surrogateescape",  # a bad id then fails one request, not the whole payload
        )

    def decode(self, payload: bytes) -> list[Scalar]:
        """Returns all values of the input.

        Raises:
            Malformed: it is truncated, holds too many values, or holds something other than scalars.
        """
        unpacker = self._unpacker
        try:
            unpacker.feed(payload)
            unpacker.feed(self._packed_end)
            values: list[Scalar] = list(islice(unpacker, self._values_max + 1))
        except (ValueError, msgpack.exceptions.UnpackException) as error:  # of msgpack, and of the hook
            self._renew()
            raise Malformed(f"not flat msgpack: {str(error) or type(error).__name__}") from None
        except BaseException:  # a signal's handler
            self._renew()
            raise
        if not values or values[-1] != self._end:
            self._renew()
            raise Malformed(f"the last value is cut off, or there are more than {self._values_max} values")
        del values[-1]
        if len(payload) > self._kept_bytes_max:
            self._renew()
        return values


def chain(groups: Iterable[Iterable[Scalar]]) -> list[Scalar]:
    """Returns the members of all groups in one list."""
    flat: list[Scalar] = []
    for group in groups:
        flat += group
    return flat
