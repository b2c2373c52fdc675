"""Proves that a chunk was durable up to some byte, by a number that the data in it cannot forge.

A record says how far its file had been synced before the record was written, and its `witness` is a keyed hash of that claim.
A new key is drawn at each start, kept in `chunks.json`, and never sent to a client. A client reads the witnesses of records
that are visible; their claims are true, also when repeated. A claim about bytes that are not durable yet was never made, so
data can only guess its witness: one of 65,536. Guesses that fail are counted, and a claim is believed only while there are more
proofs than failed guesses.

Chunks that an older program wrote have no key: there any good record counts, as it did then.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.record import (
    CRC_FROM,
    MARK,
    OWN_MARK_TO_LEAST,
    PREFIX,
    RECORD_BYTES_MAX,
    TRAILER,
    TRAILER_MARK,
    Framing,
)

KEY_BYTES: Final = 16
NO_KEY: Final = b""
_CLAIM: Final = struct.Struct("<QI")
_HEAD: Final = PREFIX.part("mark", "own_mark", "crc", "witness", "length", "durable", "sequence").unpack_from
_CHECKED_MAX: Final = 4  # times the length of the rest: genuine records do not overlap, so once is enough for them


def new_key() -> bytes:
    """Returns a key for the records that one process writes."""
    return secrets.token_bytes(KEY_BYTES)


def witness(key: bytes, chunk: int, durable: int) -> int:
    """Returns the witness of the claim that `chunk` is durable up to byte `durable`; 0 without a key."""
    if not key:
        return 0
    return int.from_bytes(blake2b(_CLAIM.pack(chunk, durable), key=key, digest_size=2).digest(), "little")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the bytes after a bad record prove.

    Attributes:
        durable: the file was durable up to this byte; 0: nothing is proven.
        proofs: the number of records with a right witness.
        failed: the number of records with a wrong witness.
        checked_bytes: under the CRCs of the records.
    """

    durable: int
    proofs: int
    failed: int
    checked_bytes: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the bytes from a bad record on.

    Attributes:
        key: of the process that wrote them; `NO_KEY` if it was an older program.
    """

    chunk: int
    framing: Framing
    key: bytes

    def evidence(self, rest: bytes, base: int, sequence: int) -> Evidence:
        """Returns what records in `rest` prove about the bytes at `base`, where `rest` begins with the bad record, whose
        sequence is `sequence`. Takes time linear in the length of `rest`, whatever its bytes are.
        """
        view, framing, least = memoryview(rest), self.framing, self.framing.least
        durable = proofs = failed = checked = 0
        position = framing.find(rest, self._behind(rest, sequence))
        while position >= 0 and len(rest) - position >= least:
            _, _, crc, tag, length, known, _ = _HEAD(rest, position)
            following = position + 1
            # a record never claims an offset beyond its own
            if base < known <= base + position and self._framed(rest, position, length):
                end = position + length
                proves = not self.key or tag == witness(self.key, self.chunk, known)
                if proves and checked + length <= _CHECKED_MAX * len(rest):
                    checked += length
                    if crc32c(view[position + CRC_FROM : end]) == crc:
                        proofs, durable, following = proofs + 1, max(durable, known), end
                else:
                    failed += 1
            position = framing.find(rest, following)
        return Evidence(durable if proofs > failed else 0, proofs, failed, checked)

    def intact(self, rest: bytes) -> bool:
        """Whether `rest` begins with a good record."""
        if len(rest) < self.framing.least:
            return False
        mark, own_mark, crc, _, length, *_ = _HEAD(rest)
        marked = mark == MARK and own_mark in self.framing.marks
        return marked and self._framed(rest, 0, length) and crc32c(memoryview(rest)[CRC_FROM:length]) == crc

    def _behind(self, rest: bytes, sequence: int) -> int:
        """Returns where the bad record ends if its length can be trusted, otherwise 0: what lies in it is its client's data."""
        if len(rest) < self.framing.least:
            return 0
        mark, own_mark, _, _, length, _, own_sequence = _HEAD(rest)
        expected = mark == MARK and own_mark in self.framing.marks and own_sequence == sequence
        return length if expected and self._framed(rest, 0, length) else 0

    def _framed(self, rest: bytes, position: int, length: int) -> bool:
        """Whether a record may have this length here: the same length follows it."""
        end = position + length
        if not rest[position + 1] + OWN_MARK_TO_LEAST <= length <= RECORD_BYTES_MAX or end > len(rest):
            return False
        return bool(TRAILER.struct.unpack_from(rest, end - TRAILER.size) == (TRAILER_MARK, length))
