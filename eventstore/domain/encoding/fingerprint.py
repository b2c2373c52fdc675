"""The fingerprint of a command: 48 bits that its commit keeps, so that another command under the same id is noticed.

It is that of the command's type and its canonical payload: what the server's class encodes the decoded command as, with equal
values written in the same way. So white space, the order of fields and of the keys of a dict, escapes, zeros at the end of a
Decimal, the offset of a time and fields left at their defaults make no difference. Earlier versions wrote values as they were.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from typing import Final, Generic, TypeVar
from zlib import crc32

from eventstore.checksum import crc32c
from eventstore.domain.encoding.codec import PayloadCodec
from eventstore.errors import PayloadInvalid
from eventstore.records.commit import NO_FINGERPRINT

C = TypeVar("C")
_PACK: Final = struct.Struct("<IH").pack
_ONE: Final = _PACK(1, 0)


class Fingerprints(Generic[C]):
    """Makes the fingerprints of one type of commands."""

    def __init__(self, name: str, codec: PayloadCodec[C]) -> None:
        self._codec = codec
        head = name.encode() + b"\0"
        self._head_crc32c = crc32c(head)
        self._head_crc32 = crc32(head)

    def of(self, payload: bytes, command: C) -> bytes:
        """Returns the fingerprint of a command that was decoded from `payload`."""
        try:
            return self.of_canonical(self._codec.encode_equal(command))
        except PayloadInvalid:  # its __post_init__ gave a field a value of another type
            return self.of_canonical(payload)

    def of_canonical(self, payload: bytes) -> bytes:
        """Returns the fingerprint of the command with this canonical payload."""
        packed = _PACK(crc32c(payload, self._head_crc32c), crc32(payload, self._head_crc32) & 0xFFFF)
        return packed if packed != NO_FINGERPRINT else _ONE

    def matches(self, fingerprint: bytes, command: C) -> bool:
        """Returns whether a stored fingerprint is that of this command; a commit without one matches every command.

        Fields at the end that have their defaults may be missing in the stored command: its class did not have them yet.
        """
        return fingerprint == NO_FINGERPRINT or fingerprint in map(self.of_canonical, self._encodings(command))

    def _encodings(self, command: C) -> Iterator[bytes]:
        try:
            encodings = dict.fromkeys((self._codec.encode_equal(command), self._codec.encode(command)))
        except PayloadInvalid:
            return
        for encoded in encodings:
            yield from _shortened(command, encoded)


def _shortened(command: object, encoded: bytes) -> Iterator[bytes]:
    """Yields the encoded command, and without the fields at its end that have their defaults."""
    yield encoded
    rest = json.loads(encoded)
    for field in reversed(dataclasses.fields(command)):  # type: ignore[arg-type] # a codec is of a dataclass
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING or getattr(command, field.name) != default:
            return
        del rest[field.name]
        yield json.dumps(rest, ensure_ascii=False, separators=(",", ":")).encode()
