"""One entry of the directory: what the sorted files hold of an aggregate, encoded with a checksum.

key    aggregate id (1–255 bytes)
value  CRC-32C of the key and of the rest (4) | version (8) | per sorted file, oldest first: file number (4), first
row (4), rows (4)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.layout import FieldLayout
from eventstore.errors import Corrupt

_VALUE = FieldLayout(("crc", "I"), ("version", "Q"))
_ROW_RANGE = FieldLayout(("file", "I"), ("first_row", "I"), ("rows", "I"))


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows [first, first + rows) of a sorted file."""

    file: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """What the sorted files hold of one aggregate."""

    version: int
    row_ranges: tuple[RowRange, ...]


NO_ENTRY: Final = DirectoryEntry(0, ())


def pack_ranges(row_ranges: Iterable[RowRange]) -> bytes:
    """Returns 12 bytes for each range."""
    return b"".join(_ROW_RANGE.struct.pack(part.file, part.first, part.rows) for part in row_ranges)


def unpack_ranges(raw: bytes) -> tuple[RowRange, ...]:
    return tuple(RowRange(*row_range) for row_range in _ROW_RANGE.struct.iter_unpack(raw))


def extended(key: bytes, value: bytes | memoryview, version: int, added: RowRange) -> bytes:
    """Returns an entry's value after one more file: at `version`, with these rows. `value` is empty for a new aggregate."""
    rest = version.to_bytes(8, "little") + bytes(value[_VALUE.size :]) + pack_ranges([added])
    return crc32c(rest, crc32c(key)).to_bytes(4, "little") + rest


def check_entry(key: bytes | memoryview, value: bytes | memoryview, name: str) -> bytes:
    """Returns the key. `name`: the directory's, for the error.

    Raises:
        Corrupt: the checksum does not match.
    """
    key = bytes(key)
    if len(value) < _VALUE.size or crc32c(value[4:], crc32c(key)) != int.from_bytes(value[:4], "little"):
        raise Corrupt(name, 0, f"the entry of {key!r} does not match its checksum")
    return key


def decode_entry(key: bytes | memoryview, value: bytes | memoryview, name: str) -> DirectoryEntry:
    """Decodes and checks an entry.

    Raises:
        Corrupt: the checksum does not match.
    """
    check_entry(key, value, name)
    raw = bytes(value)
    _, version = _VALUE.struct.unpack_from(raw)
    return DirectoryEntry(version, unpack_ranges(raw[_VALUE.size :]))
