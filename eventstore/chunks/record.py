"""A record: the unit that is written whole or not at all. This module owns what all kinds of records share.

     0        1        2          6         8         12         16           24        28          32
    +--------+--------+----------+---------+----------+----------+------------+---------+-----------+------ ... -----+
    | 0xC4   | H - 2  | CRC-32C  | flags   | length   | durable  | sequence   | epoch   | count     | kind's own     |
    +--------+--------+----------+---------+----------+----------+------------+---------+-----------+------ ... -----+
    |  ... body ...                                                                  | 0xCE | length, big endian |
    +---------------------------------------------------------------------------------+------+--------------------+

Little endian but for the trailing length. `0xC4, H - 2` makes the header of H bytes one msgpack bin and `0xCE` makes
the trailing length one msgpack uint32, so that a run of records is a flat msgpack sequence. The CRC covers everything
behind it, the lengths included. `count` is how many sequence numbers the record takes. `durable` is the byte offset up
to which its file had been synced before the record was written: with it, recovery can tell a torn tail from rot (see
`recovery`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

MARK: Final = 0xC4
PREFIX: Final = struct.Struct("<BBIHIIQII")
PREFIX_BYTES: Final = PREFIX.size
TRAILER: Final = struct.Struct(">BI")
TRAILER_MARK: Final = 0xCE
CRC_FROM: Final = 6
LENGTH_AT: Final = 8
UNORDERED: Final = -1
RECORD_BYTES_MAX: Final = 17 * 1024 * 1024

assert PREFIX_BYTES == 32


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk over records found: parallel lists, and where and why it stopped (`fault` is None at the end)."""

    offsets: list[int]
    sequences: list[int]
    end: int
    next_sequence: int
    durable: int
    checksum: int
    fault: str | None
    wants: int = 0


def walk(data: memoryview, base: int, next_sequence: int, header_bytes: int) -> Walk:
    """Checks records one after the other from the start of `data`, which lies at byte offset `base` of its file.

    Stops at the first byte that is not a good record with the expected sequence (`UNORDERED`: any). `wants` says how
    many bytes the record there claims to need when it only ran out of `data`; a caller that has more of the file can
    go on from `end`.
    """
    offsets: list[int] = []
    sequences: list[int] = []
    position, size, durable, checksum = 0, len(data), 0, 0
    fault, wants = None, 0
    ordered = next_sequence != UNORDERED
    unpack, minimum, mark = PREFIX.unpack_from, header_bytes + TRAILER.size, header_bytes - 2
    while position < size:
        if size - position < minimum:
            fault, wants = "cut off", minimum
            break
        first, own_mark, crc, _, length, known, sequence, _, count = unpack(data, position)
        if first != MARK or own_mark != mark:
            fault = "no record starts here"
            break
        if not minimum <= length <= RECORD_BYTES_MAX:
            fault = f"a record length of {length}, allowed are {minimum} to {RECORD_BYTES_MAX}"
            break
        following = position + length
        if following > size:
            fault, wants = "cut off", length
            break
        if crc32c(data[position + CRC_FROM : following]) != crc:
            fault = "the checksum of the record does not match"
            break
        if TRAILER.unpack_from(data, following - 5) != (TRAILER_MARK, length):
            fault = "the length behind the record differs from the one before it"
            break
        if sequence != next_sequence and ordered:
            fault = f"a record of sequence {sequence} where {next_sequence} belongs"
            break
        offsets.append(base + position)
        sequences.append(sequence)
        durable = max(durable, known)
        checksum += crc
        next_sequence += count if ordered else 0
        position = following
    return Walk(offsets, sequences, base + position, next_sequence, durable, checksum, fault, wants)


def check(data: memoryview, header_bytes: int) -> str | None:
    """Why `data` is not exactly one good record, or None if it is."""
    if len(data) < header_bytes + TRAILER.size:
        return "cut off"
    first, own_mark, crc, _, length, *_ = PREFIX.unpack_from(data)
    if first != MARK or own_mark != header_bytes - 2:
        return "no record starts here"
    if length != len(data):
        return f"a record length of {length} where {len(data)} was indexed"
    if crc32c(data[CRC_FROM:]) != crc:
        return "the checksum of the record does not match"
    return None


def find_valid(data: bytes | memoryview, start: int, header_bytes: int) -> list[tuple[int, int]]:
    """(position, known durable) of every good record at or behind `start`, wherever it begins. For judging damage."""
    found = []
    raw, view = bytes(data), memoryview(data)
    pattern = bytes((MARK, header_bytes - 2))
    position = raw.find(pattern, start)
    while position >= 0 and len(raw) - position >= header_bytes + TRAILER.size:
        _, _, crc, _, length, known, *_ = PREFIX.unpack_from(raw, position)
        end = position + length
        plausible = header_bytes + TRAILER.size <= length <= RECORD_BYTES_MAX and end <= len(raw)
        # the cheap check first: data that only looks like the start of a record costs no checksum over all behind it
        plausible = plausible and TRAILER.unpack_from(raw, end - TRAILER.size) == (TRAILER_MARK, length)
        if plausible and crc32c(view[position + CRC_FROM : end]) == crc:
            found.append((position, known))
            position = raw.find(pattern, end)
        else:
            position = raw.find(pattern, position + 1)
    return found
