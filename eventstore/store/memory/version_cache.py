"""The version cache: for each aggregate, its version in the sorted files and the hashes of its command ids there.

Bounded by bytes, with two generations instead of a linked list. A used entry moves to the young generation; when that is full
it becomes the old one, and the previous old one is dropped. Dropped entries are loaded from the directory again. Values are
plain bytes (version, then 8 bytes per command), which the garbage collector never traverses. The empty value stands for an
aggregate that is in no sorted file.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Final

import numpy as np

ABSENT: Final = b""
_ENTRY_BYTES: Final = 230  # measured: the string, the bytes header and the slots of two dicts
_LINEAR_COMMANDS_MAX: Final = 512


def pack(version: int, hashes: bytes) -> bytes:
    """Returns a cache value. Large sets of hashes are sorted, so that a lookup is a bisect instead of a scan."""
    if len(hashes) > 8 * _LINEAR_COMMANDS_MAX:
        hashes = np.sort(np.frombuffer(hashes, "<u8")).tobytes()
    return version.to_bytes(8, "little") + hashes


def version_of(value: bytes) -> int:
    return int.from_bytes(value[:8], "little")


def may_contain(value: bytes, command_hash: int) -> bool:
    """Returns whether a command with this hash may be among them. False is certain."""
    if len(value) <= 8 + 8 * _LINEAR_COMMANDS_MAX:
        return value.find(command_hash.to_bytes(8, "little"), 8) >= 0
    hashes = np.frombuffer(value, "<u8", offset=8)
    place = int(np.searchsorted(hashes, np.uint64(command_hash)))
    return place < len(hashes) and int(hashes[place]) == command_hash


class VersionCache:
    """Aggregate id → cache value. Code that cannot afford the call of `get` may read `young` directly."""

    def __init__(self, bytes_max: int) -> None:
        self._generation_bytes_max = bytes_max // 2
        self.young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._young_bytes = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def get(self, aggregate_id: str) -> bytes | None:
        value = self.young.get(aggregate_id)
        if value is None:
            value = self._old.pop(aggregate_id, None)
            if value is None:
                return None
            self.put(aggregate_id, value)
        return value

    def put(self, aggregate_id: str, value: bytes) -> None:
        self.young[aggregate_id] = value
        self._young_bytes += _ENTRY_BYTES + len(value)
        if self._young_bytes > self._generation_bytes_max:
            self._old, self.young, self._young_bytes = self.young, {}, 0

    def forget(self, aggregate_id: str) -> None:
        self.young.pop(aggregate_id, None)
        self._old.pop(aggregate_id, None)

    def clear(self) -> None:
        self.young, self._old, self._young_bytes = {}, {}, 0

    def recent(self, count: int) -> list[str]:
        """Returns up to `count` ids, the most recently used last."""
        newest_first = islice(chain(reversed(self.young), reversed(self._old)), count)
        return list(newest_first)[::-1]
