"""The rate that a person sets for copies: how fast a leader sends from its files to replicas that are not in sync, to all of
them together.
"""

from __future__ import annotations

from typing import Final

import trio

from eventstore_cluster.replication.logs.leader_log import PAYLOAD_BYTES

_PIECE_S: Final = 0.5
"""A piece that is sent at a limited rate takes no longer: a follower that hears nothing leaves its leader."""


class SendingRate:
    """Limits what is sent: in any time, no more than the rate allows and one piece."""

    def __init__(self) -> None:
        self._free_at = 0.0

    @staticmethod
    def piece_bytes(rate: int | None) -> int:
        """Returns how many bytes are read at once. `rate`: bytes a second; None: not limited."""
        return PAYLOAD_BYTES if rate is None else min(PAYLOAD_BYTES, max(int(rate * _PIECE_S), 1))

    async def wait(self, size: int, rate: int | None) -> None:
        """Waits until earlier bytes have had their time at the rate; on return the caller may send `size` bytes."""
        if rate is None:
            return
        begins = max(trio.current_time(), self._free_at)
        self._free_at = begins + size / rate
        await trio.sleep_until(begins)
