"""The content of one simulated file: live, durable, and every unsynced sector in between."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

SECTOR_BYTES: Final = 512
_ZEROS: Final = bytes(SECTOR_BYTES)


class FileContent:
    """The content of one file, live and durable, independent of its name.

    A sector that is not in `before` has the same content live and durable; beyond either end it reads as zeros. So a sync
    costs as much as what it makes durable, not as much as the file.
    """

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.live = bytearray(content)
        self.before: dict[int, bytes] = {}  # sector → its durable content
        self.between: dict[int, bytes] = {}  # sector → the unsynced version that the latest one replaced
        self.stale: set[int] = set()  # sectors of `before` that a failed sync marked clean
        self.sizes = [(len(content), len(content))]  # the ranges of sizes since the last sync, the durable size first
        self.next_size = len(content)  # the durable size after the next sync
        self.path = ""
        self.mapped = False
        self.locked = False
        self._snapshot: bytes | None = None

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        self._touch(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))
        if offset > len(self.live):
            self.live.extend(bytes(offset - len(self.live)))
        self.live[offset:end] = data
        self.sizes[-1] = (self.sizes[-1][0], len(self.live))
        self.next_size = max(self.next_size, end)

    def resize(self, size: int) -> None:
        if size == len(self.live):
            return
        if size < len(self.live):
            self._touch(range(size // SECTOR_BYTES, -(-len(self.live) // SECTOR_BYTES)))
            del self.live[size:]
        else:
            self._snapshot = None
            self.live.extend(bytes(size - len(self.live)))
        self.sizes.append((size, size))
        self.next_size = size

    def sync(self) -> None:
        self.before = {sector: self.before[sector] for sector in self.stale}
        self.between = {sector: old for sector, old in self.between.items() if sector in self.stale}
        self.sizes = [(self.next_size, len(self.live))]

    def fail_sync(self) -> None:
        """Marks the sectors clean. Truncations stay pending: they are in the journal, not in the failed pages."""
        self.stale.update(sector for sector in self.before if sector * SECTOR_BYTES < len(self.live))
        self.next_size = min(self.sizes[0][0], len(self.live))

    def snapshot(self) -> bytes:
        if self._snapshot is None:
            self._snapshot = bytes(self.live)
        return self._snapshot

    def copy(self) -> FileContent:
        """Returns the file as another process sees it: with unsynced data, without maps and locks."""
        other = FileContent(self.live)
        other.before, other.between, other.stale = dict(self.before), dict(self.between), set(self.stale)
        other.sizes, other.next_size, other.path = list(self.sizes), self.next_size, self.path
        return other

    def durable(self) -> bytearray:
        return self._image(self.sizes[0][0], self.before)

    def torn(self, rng: random.Random) -> bytearray:
        """Returns a content that a power failure may leave: some unsynced sectors, and one of the sizes since the last sync."""
        low, high = rng.choice((self.sizes[0], self.sizes[-1], rng.choice(self.sizes)))
        size = rng.choice((low, high, rng.randint(low, high)))
        chance = rng.choice((0.05, 0.5, 0.95, 1.0))  # a hole in a large batch and a lone survivor must both occur
        older = {}
        for sector in sorted(self.before):
            if rng.random() < chance and sector * SECTOR_BYTES < len(self.live):
                continue
            versions = (self.before[sector], self.between.get(sector, self.before[sector]))
            older[sector] = rng.choice(versions)
        return self._image(size, older)

    def flip(self, byte_offset: int, bit: int) -> None:
        self.live[byte_offset] ^= 1 << bit
        self._snapshot = None
        sector, place = divmod(byte_offset, SECTOR_BYTES)
        for older in (self.before, self.between):
            if sector in older:
                content = bytearray(older[sector])
                content[place] ^= 1 << bit
                older[sector] = bytes(content)

    def replace(self, content: bytes) -> None:
        self.live[:] = content
        self.before, self.between, self.stale = {}, {}, set()
        self.sizes, self.next_size = [(len(content), len(content))], len(content)
        self._snapshot = None

    def _touch(self, sectors: range) -> None:
        """Notes the sectors' content; call it before they change."""
        self._snapshot = None
        self.stale.difference_update(sectors)
        for sector in sectors:
            start = sector * SECTOR_BYTES
            old = bytes(self.live[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
            if old == _ZEROS:
                old = _ZEROS  # one shared object, or a preallocated file would be held twice
            if sector in self.before:
                self.between[sector] = old
            else:
                self.before[sector] = old

    def _image(self, size: int, older: Mapping[int, bytes]) -> bytearray:
        image = self.live[:size]
        image.extend(bytes(size - len(image)))
        for sector, content in older.items():
            start = sector * SECTOR_BYTES
            if start < size:
                image[start : start + SECTOR_BYTES] = content[: size - start]
        return image
