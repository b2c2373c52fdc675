"""Answers that were made and not taken yet, bounded for each connection and over all of them together.

Whoever makes a page reserves its bytes before it is read: else several that look for room at once all find it, and each adds
a page. Past either bound nobody begins another page, so that what is held goes beyond it by one page at most, of 17 MiB at
most. A page that has become larger than was reserved for it (a single commit may be) is thrown away where it does not fit any
more, and made again later. What is made on the event loop is small, and looks at the bound over all connections alone.

Past the bound over all connections pages wait for one another; who holds them up are clients that take nothing. So, while
somebody waits, those that have taken nothing for a second are closed, the longest first, until the rest is within the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import trio

from eventstore.server.connection import Connection

_PATIENCE_SECONDS: Final = 1.0
_SPARE_BYTES: Final = 64 * 1024  # a page ends with the commit that fills it


class Outgoing:
    """Counts what is unsent and reserved. `count` is called wherever `Connection.unsent_bytes` has changed."""

    def __init__(self, connection_bytes_max: int, bytes_max: int) -> None:
        self._connection_bytes_max = connection_bytes_max
        self._bytes_max = bytes_max
        self._room = trio.lowlevel.ParkingLot()
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether nobody may begin another page, whoever it is for."""
        return self.bytes >= self._bytes_max

    def has_room(self, connection: Connection) -> bool:
        """Whether the connection itself may be made another page."""
        return connection.unsent_bytes + connection.reserved_bytes < self._connection_bytes_max

    async def reserve(self, connection: Connection, size: int) -> bool:
        """Returns when a page of about `size` may be made for the connection; False when it is closed.

        Call `release` when the page is made; what it takes then is counted when it is sent.
        """
        while not connection.closed:
            if not self.has_room(connection):
                self._pass_on()
                await connection.room.park()
            elif self.full:
                await self._room.park()
            else:
                connection.reserved_bytes += size
                self.bytes += size
                self._pass_on()
                return True
        self._pass_on()
        return False

    def release(self, connection: Connection, size: int) -> None:
        """The page is made, or will not be."""
        connection.reserved_bytes -= size
        self.bytes -= size
        if connection.room and self.has_room(connection):
            connection.room.unpark_all()
        self._pass_on()

    def fits(self, connection: Connection, size: int, reserved: int) -> bool:
        """Whether a page for which `reserved` was released may be sent, although it has become as large as `size`."""
        return size <= reserved + _SPARE_BYTES or (self.has_room(connection) and not self.full)

    def count(self, connection: Connection) -> None:
        """What the connection has not taken has become more, or less."""
        self.bytes += connection.unsent_bytes - connection.counted_bytes
        connection.counted_bytes = connection.unsent_bytes
        self._pass_on()

    def forget(self, connection: Connection) -> None:
        """The connection is closed, and what it did not take is thrown away."""
        self.bytes -= connection.counted_bytes
        connection.counted_bytes = 0
        self._pass_on()

    def in_the_way(self, connections: Iterable[Connection], now: float) -> Iterator[Connection]:
        """Those to be closed, so that others may be made their pages; each is to be closed before the next is asked for."""
        if not self._room:
            return
        blocked = [
            (connection.blocked_since, number, connection)
            for number, connection in enumerate(connections)
            if connection.blocked_since is not None and now - connection.blocked_since > _PATIENCE_SECONDS
        ]
        for _, _, connection in sorted(blocked):
            if not self.full:
                return
            yield connection

    def _pass_on(self) -> None:
        """Wakes one of those who wait, who wakes the next one: all at once would only find that there is no room for them."""
        if self._room and not self.full:
            self._room.unpark()
