"""Texts that share their CRCs, as somebody makes them who wants many candidates for one hash."""

from __future__ import annotations

import itertools
import zlib

from crc32c import crc32c

_BITS = 80  # sixteen more than both CRCs have: 2^16 combinations of changes leave them as they are
_STEM = b"@" * _BITS


def both_crcs(text: bytes) -> int:
    return int(crc32c(text)) << 32 | zlib.crc32(text)


def colliding(count: int) -> list[str]:
    """Returns texts with the same CRC-32C and CRC-32.

    A flip of bit 0 of a byte changes the CRCs by a fixed value; flips are combined so that nothing changes.
    """
    zero = both_crcs(_STEM)
    basis: dict[int, tuple[int, int]] = {}  # highest bit → (change of the CRCs, which bytes were flipped)
    kernel = []
    for place in range(_BITS):
        flipped = bytearray(_STEM)
        flipped[place] ^= 1
        change, mask = both_crcs(bytes(flipped)) ^ zero, 1 << place
        while change and change.bit_length() in basis:
            other, its_mask = basis[change.bit_length()]
            change, mask = change ^ other, mask ^ its_mask
        if change:
            basis[change.bit_length()] = change, mask
        else:
            kernel.append(mask)
    found = []
    for chosen in itertools.islice(itertools.product((0, 1), repeat=len(kernel)), count):
        mask = 0
        for take, each in zip(chosen, kernel, strict=True):
            mask ^= each * take
        found.append(bytes(byte ^ (mask >> place & 1) for place, byte in enumerate(_STEM)).decode())
    assert len(set(found)) == count
    assert {both_crcs(each.encode()) for each in found} == {zero}
    return found
