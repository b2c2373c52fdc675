"""Maps an aggregate id to its slot: the same in every process and on every machine, unlike Python's own `hash`."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

SLOTS: Final = 4096


def slot_of(aggregate_id: str) -> int:
    """Returns the CRC-32C of the id's UTF-8 bytes, modulo 4096."""
    return crc32c(aggregate_id.encode("utf-8", "surrogatepass")) % SLOTS
