"""Which mailbox an aggregate belongs to. The same in every process and on every machine: Python's own `hash` is not."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

SLOTS: Final = 4096


def slot_of(aggregate_id: str) -> int:
    """crc32c of the id's UTF-8 bytes, modulo 4096."""
    return crc32c(aggregate_id.encode("utf-8", "surrogatepass")) % SLOTS
