"""Checks records, the unit that is written whole or not at all, and defines what all kinds of records share.

     0        1        2          6         8         12         16           24        28          32
    +--------+--------+----------+---------+----------+----------+------------+---------+-----------+------ ... -----+
    | 0xC4   | H - 2  | CRC-32C  | witness | length   | durable  | sequence   | epoch   | count     | kind's own     |
    +--------+--------+----------+---------+----------+----------+------------+---------+-----------+------ ... -----+
    |  ... body ...                                                                  | 0xCE | length, big endian |
    +---------------------------------------------------------------------------------+------+--------------------+

Little endian except for the trailing length. `0xC4, H - 2` makes the header of H bytes one msgpack bin, and `0xCE` makes the
trailing length one msgpack uint32, so a run of records is a flat msgpack sequence. The CRC covers everything after it, both
lengths included. `count` is the number of sequences the record takes. `durable` is the byte offset up to which the file had
been synced before the record was written, and `witness` proves that (see `witness`): recovery uses them to distinguish a torn
tail from rot.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from eventstore.arrays import np, npt
from eventstore.checksum import crc32c
from eventstore.chunks.layout import FieldLayout

MARK: Final = 0xC4
PREFIX: Final = FieldLayout(
    ("mark", "B"),
    ("own_mark", "B"),
    ("crc", "I"),
    ("witness", "H"),
    ("length", "I"),
    ("durable", "I"),
    ("sequence", "Q"),
    ("epoch", "I"),
    ("count", "I"),
)
PREFIX_BYTES: Final = PREFIX.size
TRAILER: Final = FieldLayout(("mark", "B"), ("length", "I"), order=">")
TRAILER_MARK: Final = 0xCE
CRC_FROM: Final = PREFIX["crc"].end
LENGTH_AT: Final = PREFIX["length"].offset
THROUGH_CRC: Final = PREFIX.part("mark", "own_mark", "crc", stop=CRC_FROM)
"""Packs the first part of a header, which is the same in all kinds of records; the CRC covers everything after it."""

UNORDERED: Final = -1
RECORD_BYTES_MAX: Final = 17 * 1024 * 1024
_CHECKED_MAX: Final = 4  # times the length of the data: genuine records do not overlap

OWN_MARK_TO_LEAST: Final = 2 + TRAILER.size
"""What is added to `own_mark` gives the least length of a record with such a header."""

_WALKED: Final = PREFIX.part("mark", "own_mark", "crc", "length", "durable", "sequence", "count").unpack_from

assert PREFIX_BYTES == 32


def after_crc(header: FieldLayout) -> struct.Struct:
    """Returns the struct for the rest of a header: the fields from `witness` on; reserved bytes are zeros."""
    return header.part(*header.names[header.names.index("witness") :], start=CRC_FROM)


class Framing:
    """The lengths that the headers of one kind of records may have, and which records belong together.

    Attributes:
        least: bytes of the shortest record: a header and the trailer.
        marks: the `own_mark` for each length of a header.
        missing: returns for the last record of a run, which begins at a position of the bytes, how many records before it
            belong to it, and how many after it; None: records of this kind stand alone.
    """

    __slots__ = ("_beginning", "_permitted", "least", "marks", "missing")

    def __init__(self, *header_bytes: int, missing: Callable[[bytes | memoryview, int], tuple[int, int]] | None = None) -> None:
        self.missing = missing
        self.least = min(header_bytes) + TRAILER.size
        self.marks = frozenset(length - 2 for length in header_bytes)
        self._beginning = re.compile(re.escape(bytes((MARK,))) + b"[" + re.escape(bytes(sorted(self.marks))) + b"]")
        self._permitted = bytes(own_mark in self.marks for own_mark in range(256))

    def find(self, raw: bytes, start: int) -> int:
        """Returns the first position from `start` on at which the marks of a record lie; -1: there is none."""
        found = self._beginning.search(raw, start)
        return -1 if found is None else found.start()

    def whole(self, data: bytes | memoryview, base: int, found: Walk) -> int:
        """Returns how many of the records of a walk, from the first on, miss none of those that belong to them. `data` begins
        at byte `base` of the file.
        """
        many = len(found.offsets)
        before, after = self.missing(data, found.offsets[-1] - base) if self.missing is not None and many else (0, 0)
        return max(0, many - before - 1) if after else many

    def permits(self, own_marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Returns for each `own_mark` whether a header may have it."""
        permitted: npt.NDArray[np.bool_] = np.frombuffer(self._permitted, bool)[own_marks]
        return permitted


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a walk over records, in parallel lists, and where it stopped.

    Attributes:
        fault: why it stopped; None at the end of the data.
        wants: if the data ended within a record, the number of bytes that record claims to need.
    """

    offsets: list[int]
    sequences: list[int]
    end: int
    next_sequence: int
    durable: int
    checksum: int
    fault: str | None
    wants: int = 0


def walk(data: memoryview, base: int, next_sequence: int, framing: Framing) -> Walk:
    """Checks records one by one from the start of `data`, which was read at byte offset `base` of its file.

    Stops at the first byte that does not begin a good record with the expected sequence (`UNORDERED`: any). If the data ended
    within a record, a caller that has more of the file can continue at `end`.
    """
    offsets: list[int] = []
    sequences: list[int] = []
    position, size, durable, checksum = 0, len(data), 0, 0
    fault, wants = None, 0
    ordered = next_sequence != UNORDERED
    unpack, trailer_at = _WALKED, TRAILER.struct.unpack_from
    least, marks = framing.least, framing.marks
    while position < size:
        if size - position < least:
            fault, wants = "cut off", least
            break
        first, own_mark, crc, length, known, sequence, count = unpack(data, position)
        if first != MARK or own_mark not in marks:
            fault = "no record starts here"
            break
        if not own_mark + OWN_MARK_TO_LEAST <= length <= RECORD_BYTES_MAX:
            fault = f"a record length of {length}, allowed are {own_mark + OWN_MARK_TO_LEAST} to {RECORD_BYTES_MAX}"
            break
        following = position + length
        if following > size:
            fault, wants = "cut off", length
            break
        if crc32c(data[position + CRC_FROM : following]) != crc:
            fault = "the checksum of the record does not match"
            break
        if trailer_at(data, following - 5) != (TRAILER_MARK, length):
            fault = "the length after the record differs from the one in its header"
            break
        if sequence != next_sequence and ordered:
            fault = f"a record of sequence {sequence}, expected {next_sequence}"
            break
        offsets.append(base + position)
        sequences.append(sequence)
        if known > durable:
            durable = known
        checksum += crc
        next_sequence += count if ordered else 0
        position = following
    return Walk(offsets, sequences, base + position, next_sequence, durable, checksum, fault, wants)


def check(data: memoryview, framing: Framing) -> str | None:
    """Returns why `data` is not exactly one good record, or None if it is."""
    if len(data) < framing.least:
        return "cut off"
    first, own_mark, crc, length, *_ = _WALKED(data)
    if first != MARK or own_mark not in framing.marks:
        return "no record starts here"
    if length != len(data):
        return f"a record length of {length}, the index says {len(data)}"
    if crc32c(data[CRC_FROM:]) != crc:
        return "the checksum of the record does not match"
    return None


def crc_at(data: bytes | memoryview, position: int) -> int:
    """Returns the CRC that the record at `position` says."""
    crc: int = _WALKED(data, position)[2]
    return crc


def find_valid(data: bytes | memoryview, start: int, framing: Framing) -> list[tuple[int, int]]:
    """Returns (position, known durable) of good records from `start` on, at any position. For reading what damage left.

    They may lie in an event's data, so they prove nothing (see `witness`). Takes time linear in the length of `data`: records
    that overlap in great number are not all found.
    """
    found = []
    raw, view = bytes(data), memoryview(data)
    budget = _CHECKED_MAX * len(raw)
    position = framing.find(raw, start)
    while position >= 0 and len(raw) - position >= framing.least:
        _, own_mark, crc, length, known, *_ = _WALKED(raw, position)
        end = position + length
        plausible = own_mark + OWN_MARK_TO_LEAST <= length <= RECORD_BYTES_MAX and end <= len(raw) and length <= budget
        # the cheap check first: data that only looks like the start of a record then costs no checksum
        plausible = plausible and TRAILER.struct.unpack_from(raw, end - TRAILER.size) == (TRAILER_MARK, length)
        budget -= length if plausible else 0
        if plausible and crc32c(view[position + CRC_FROM : end]) == crc:
            found.append((position, known))
            position = framing.find(raw, end)
        else:
            position = framing.find(raw, position + 1)
    return found
