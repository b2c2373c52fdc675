"""Threads on which the reads of an embedded store wait for the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

_SCANS_MAX: Final = 8
_REPLAYS_MAX: Final = 16
Read = TypeVar("Read")


class ReaderThreads:
    """Bounds the threads, with separate ones for scans and for single aggregates, so that slow scans delay no others."""

    def __init__(self) -> None:
        self._scans = trio.CapacityLimiter(_SCANS_MAX)
        self._replays = trio.CapacityLimiter(_REPLAYS_MAX)
        self._in_flight = 0
        self._finished = trio.lowlevel.ParkingLot()

    async def scan(self, read: Callable[[], Read]) -> Read:
        """Calls `read`, which goes through many events; files must stay open until `finished`."""
        return await self._call(read, self._scans)

    async def replay(self, read: Callable[[], Read]) -> Read:
        """Calls `read`, which is about one aggregate; files must stay open until `finished`."""
        return await self._call(read, self._replays)

    async def _call(self, read: Callable[[], Read], limiter: trio.CapacityLimiter) -> Read:
        self._in_flight += 1
        try:
            return await trio.to_thread.run_sync(read, limiter=limiter)
        finally:
            self._in_flight -= 1
            self._finished.unpark_all()

    async def finished(self) -> None:
        """Waits until no read is under way."""
        while self._in_flight:
            await self._finished.park()
