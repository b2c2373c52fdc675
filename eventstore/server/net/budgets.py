"""Bounds on memory: requests not processed yet (inbound), answers not sent yet (outbound), and the backlog for the disk.

Inbound: one connection may have a frame of 17 MiB on its way, and so may each of thousands: together more than a machine
has. Over `bytes_max` the connection whose frame has been on its way the longest is answered with `Overloaded` and closed,
until the rest fits. A client that sends at all finishes its frame long before it is the oldest, and a closed one retries.

Outbound: bounded per connection and over all connections. A page's bytes are reserved before the page is read; otherwise
several readers would see the same free room, and each would add a page. Over either bound no further page is begun, so the
total exceeds it by at most one page (17 MiB). A page that grew past its reservation (a single commit may) and does not fit is
thrown away and made again later. Answers made on the event loop are small and check the bound over all connections only.

Over the outbound bound pages wait for each other because some clients read nothing. While a page waits, connections that have
read nothing for a second are closed, the longest blocked first, until the rest is within the bound.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

import trio

from eventstore.errors import Overloaded
from eventstore.server.net.connection import Connection

_INBOUND_CHECK_SECONDS: Final = 0.01  # adding up thousands of frames is too slow to do in every turn
_BLOCKED_SECONDS_MAX: Final = 1.0
_SPARE_BYTES: Final = 64 * 1024  # a page ends with the commit that fills it
_log = logging.getLogger(__name__)

T = TypeVar("T")


class Backlog(Protocol):
    """Requests on their way to the disk. While it is `full` the gate receives nothing, and TCP holds back the senders."""

    @property
    def full(self) -> bool: ...

    @property
    def writing(self) -> bool: ...

    async def wait_for_room(self) -> None: ...


class NoBacklog:
    """Never full: for a server without a disk of its own."""

    full = False
    writing = False

    async def wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint()


class InboundBudget:
    """Bounds the bytes held for requests. Checked every 10 ms; between two checks the total may exceed the bound.

    `holding`: the connections with unprocessed bytes. `turn_away` sends a connection an error and closes it.
    """

    def __init__(
        self, bytes_max: int, holding: Collection[Connection], turn_away: Callable[[Connection, Overloaded], None]
    ) -> None:
        self._bytes_max = bytes_max
        self._holding = holding
        self._turn_away = turn_away
        self._checked = 0.0

    def end_turn(self) -> None:
        """Checks the bound, if the last check was long enough ago."""
        now = time.monotonic()
        if now - self._checked >= _INBOUND_CHECK_SECONDS:
            self._checked = now
            self.enforce()

    def enforce(self) -> None:
        """Closes connections until the total is within the bound."""
        held = {connection: size for connection in self._holding if (size := connection.held_bytes)}
        total, limit = sum(held.values()), self._bytes_max
        if total <= limit:
            return
        for connection in sorted(held, key=_held_since):
            _log.warning(
                "closing a connection (%s): unfinished requests of all connections take %d bytes, the limit is %d; "
                "%d are from this one",
                connection.name or "no hello", total, limit, held[connection],
            )  # fmt: skip
            message = f"unfinished requests take {total} bytes, the limit is {limit}; send it again"
            self._turn_away(connection, Overloaded(message, limit=limit))
            total -= held[connection]
            if total <= limit:
                return


def _held_since(connection: Connection) -> float:
    return connection.heard if connection.frame_since is None else connection.frame_since


class _ConnectionClosed(Exception):
    """No page can be made for a closed connection."""


class Reservation:
    """An async context manager: waits for room for a page, and releases it when the page was made or failed."""

    __slots__ = ("_budget", "_connection", "_size")

    def __init__(self, budget: OutboundBudget, connection: Connection, size: int) -> None:
        self._budget = budget
        self._connection = connection
        self._size = size

    async def __aenter__(self) -> None:
        if not await self._budget.reserve(self._connection, self._size):
            raise _ConnectionClosed

    async def __aexit__(self, *_: object) -> None:
        self._budget.release(self._connection, self._size)


Reserve: TypeAlias = Callable[[], Reservation]


class OutboundBudget:
    """Counts unsent and reserved bytes. Call `count` whenever `Connection.unsent_bytes` has changed."""

    def __init__(self, connection_bytes_max: int, bytes_max: int) -> None:
        self._connection_bytes_max = connection_bytes_max
        self._bytes_max = bytes_max
        self._room = trio.lowlevel.ParkingLot()
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether no page may be begun, for any connection."""
        return self.bytes >= self._bytes_max

    def has_room(self, connection: Connection) -> bool:
        """Whether the connection's own bound allows another page."""
        return connection.unsent_bytes + connection.reserved_bytes < self._connection_bytes_max

    async def make_page(
        self, connection: Connection, size: int, make: Callable[[Reserve], Awaitable[T]], measure: Callable[[T], int]
    ) -> T | None:
        """Returns a page that fits into the budget, or None if the connection is closed.

        `make` must read the page inside `async with reserve():`, and is called again if the page grew far past `size` and does
        not fit. `measure` returns a page's size in bytes.
        """
        while True:
            reserved = size + _SPARE_BYTES
            try:
                page = await make(partial(Reservation, self, connection, reserved))
            except _ConnectionClosed:
                return None
            size = measure(page)
            if self.fits(connection, size, reserved):
                return page
            del page  # else it would be in memory, uncounted, until there is room to make it again

    async def reserve(self, connection: Connection, size: int) -> bool:
        """Waits until a page of about `size` bytes may be made; returns False if the connection is closed.

        Call `release` when the page is made. Its real size is counted when it is sent.
        """
        while not connection.closed:
            if not self.has_room(connection):
                self._wake_next()
                await connection.room.park()
            elif self.full:
                await self._room.park()
            else:
                connection.reserved_bytes += size
                self.bytes += size
                self._wake_next()
                return True
        self._wake_next()
        return False

    def release(self, connection: Connection, size: int) -> None:
        """Undoes a `reserve`: the page was made, or will not be."""
        connection.reserved_bytes -= size
        self.bytes -= size
        if connection.room and self.has_room(connection):
            connection.room.unpark_all()
        self._wake_next()

    def fits(self, connection: Connection, size: int, reserved: int) -> bool:
        """Whether a page of `size` bytes may be sent after its reservation of `reserved` bytes was released."""
        return size <= reserved or (self.has_room(connection) and not self.full)

    def count(self, connection: Connection) -> None:
        """Adjusts the total to the connection's unsent bytes."""
        self.bytes += connection.unsent_bytes - connection.counted_bytes
        connection.counted_bytes = connection.unsent_bytes
        self._wake_next()

    def forget(self, connection: Connection) -> None:
        """Subtracts what a closed connection did not read."""
        self.bytes -= connection.counted_bytes
        connection.counted_bytes = 0
        self._wake_next()

    def blocking(self, connections: Iterable[Connection], now: float) -> Iterator[Connection]:
        """Yields connections to close so that waiting pages get room. Close each before the next is requested."""
        if not self._room:
            return
        blocked = [
            (connection.blocked_since, number, connection)
            for number, connection in enumerate(connections)
            if connection.blocked_since is not None and now - connection.blocked_since > _BLOCKED_SECONDS_MAX
        ]
        for _, _, connection in sorted(blocked):
            if not self.full:
                return
            yield connection

    def _wake_next(self) -> None:
        """Wakes one waiter, which wakes the next: waking all of them would let all but one find no room."""
        if self._room and not self.full:
            self._room.unpark()
