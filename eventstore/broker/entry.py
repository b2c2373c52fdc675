"""An entry of a queue chunk: where a message of the queue lies, and the hashes by which it is found.

     0              8              16       20         24         28        32
    +--------------+--------------+--------+----------+----------+---------+
    | queue offset | position + 1 | length | tag hash | key hash | CRC-32C |
    +--------------+--------------+--------+----------+----------+---------+

The CRC covers the topic id and the queue number (u32 each), and behind them the 28 bytes in front of it: an entry that is
copied to another queue, or to another place, is noticed. It has to be: a reader with a tag filter believes the hash and
never looks at the message.

The CRCs of many entries are computed at once: a CRC is linear, so that of 28 bytes is the XOR of 28 table look-ups, each of
which numpy makes for all entries together (40 ns an entry instead of 400).
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, TypeAlias

import numpy as np
from crc32c import crc32c

from eventstore.broker.state_record import QueueKey

ENTRY: Final = np.dtype(
    [("offset", "<u8"), ("position", "<u8"), ("length", "<u4"), ("tag", "<u4"), ("key", "<u4"), ("crc", "<u4")]
)
LAYOUT: Final = struct.Struct("<QQIIII")
ENTRY_BYTES: Final = ENTRY.itemsize
COVERED_BYTES: Final = ENTRY_BYTES - 4
OWNER: Final = struct.Struct("<II")
_TOGETHER: Final = 8192  # no step holds the interpreter for more than some 50 µs: others serve messages meanwhile
Entries: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.void]]"

assert ENTRY_BYTES == LAYOUT.size == 32

_ZERO: Final = crc32c(bytes(COVERED_BYTES))
_TABLES: Final = np.array(
    [
        [crc32c(bytes(place) + bytes((value,)) + bytes(COVERED_BYTES - 1 - place)) ^ _ZERO for value in range(256)]
        for place in range(COVERED_BYTES)
    ],
    dtype=np.uint32,
)


def make_entries(
    key: QueueKey, first_offset: int, positions: array[int], lengths: array[int], tags: array[int], keys: array[int]
) -> Entries:
    """Entries for consecutive offsets of one queue."""
    entries = np.zeros(len(positions), ENTRY)
    entries["offset"] = np.arange(first_offset, first_offset + len(positions), dtype=np.uint64)
    entries["position"] = np.frombuffer(positions, np.uint64) + np.uint64(1)
    entries["length"] = np.frombuffer(lengths, np.uint32)
    entries["tag"] = np.frombuffer(tags, np.uint32)
    entries["key"] = np.frombuffer(keys, np.uint32)
    entries["crc"] = checksums(key, entries)
    return entries


def checksums(key: QueueKey, entries: Entries) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The CRC that each entry should have."""
    raw = entries.view(np.uint8).reshape(-1, ENTRY_BYTES)
    result = np.full(len(entries), crc32c(OWNER.pack(*key) + bytes(COVERED_BYTES)), np.uint32)
    for start in range(0, len(entries), _TOGETHER):
        part, some = result[start : start + _TOGETHER], raw[start : start + _TOGETHER]
        for place in range(COVERED_BYTES):
            part ^= _TABLES[place][some[:, place]]
    return result


def first_bad(key: QueueKey, first_offset: int, entries: Entries) -> int | None:
    """The place of the first entry that is damaged or belongs elsewhere."""
    good = entries["crc"] == checksums(key, entries)
    good &= entries["offset"] == np.arange(first_offset, first_offset + len(entries), dtype=np.uint64)
    return None if good.all() else int(np.argmin(good))
