"""Bounds on memory: requests not processed yet (inbound), answers not sent yet (outbound), and the backlog for the disk.

Inbound: one connection may have a frame of 17 MiB on its way, and so may each of thousands: together more than a machine
has. Over `bytes_max` the connection whose frame has been on its way the longest is answered with `Overloaded` and closed,
until the rest fits. A client that sends at all finishes its frame long before it is the oldest, and a closed one retries.

Outbound: bounded per connection and over all connections. A page's bytes are reserved before the page is read; otherwise
several readers would see the same free room, and each would add a page. Over either bound no further page is begun, so the
total exceeds it by at most one page (17 MiB). A page that grew past its reservation (a single commit may) and does not fit is
thrown away and made again later. Answers made on the event loop are small: over the bound of all connections, one is not
asked for more that waits for an answer or holds its share.

A quarter of the outbound bound is kept for connections that hold nothing of it, an equal share for each: a client that takes
its answers gets small pages at once, however many others trickle.

Over the rest of the bound pages wait for each other because some clients read nothing. While a page waits, connections that
have read nothing for a second are closed, the longest blocked first, until the rest is within the bound. Connections with
waiting pages get room in turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Final, Protocol, TypeVar

import trio

from eventstore.errors import Overloaded
from eventstore.server.net.connection import ServerConnection

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

    def tell(self, written: Callable[[], None] | None) -> None:
        """Has a thread call `written` after each write, if there is one; None: no longer."""

    def collect(self) -> None:
        """Delivers the outcomes of what was written."""


class NoBacklog:
    """Never full: for a server without a disk of its own."""

    full = False
    writing = False

    async def wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint()

    def tell(self, written: Callable[[], None] | None) -> None:
        pass

    def collect(self) -> None:
        pass


class InboundBudget:
    """Bounds the bytes held for requests. Checked every 10 ms; between two checks the total may exceed the bound.

    `holding`: the connections with unprocessed bytes. `turn_away` sends a connection an error and closes it.

    Attributes:
        due: when to check next.
    """

    def __init__(
        self, bytes_max: int, holding: Collection[ServerConnection], turn_away: Callable[[ServerConnection, Overloaded], None]
    ) -> None:
        self._bytes_max = bytes_max
        self._holding = holding
        self._turn_away = turn_away
        self.due = float("-inf")

    def enforce(self, now: float) -> None:
        """Closes connections until the total is within the bound."""
        self.due = now + _INBOUND_CHECK_SECONDS
        held = {connection: size for connection in self._holding if (size := connection.held_bytes)}
        total, limit = sum(held.values()), self._bytes_max
        if total <= limit:
            return
        for connection in sorted(held, key=_held_since):
            _log.warning(
                "closing a connection (%s): unfinished requests of all connections take %d bytes, the limit is %d; "
                "%d are from this one",
                connection.name or "no hello",
                total,
                limit,
                held[connection],
            )
            message = f"unfinished requests take {total} bytes, the limit is {limit}; send it again"
            self._turn_away(connection, Overloaded(message, limit=limit))
            total -= held[connection]
            if total <= limit:
                return


def _held_since(connection: ServerConnection) -> float:
    return connection.heard if connection.frame_since is None else connection.frame_began


class _ConnectionClosed(Exception):
    """No page can be made for a closed connection."""


class Reservation:
    """An async context manager: waits for room for a page, says how large it may be, and releases the room when the page was
    made or failed. It may be entered again. `reserved`: the room it had the last time.
    """

    __slots__ = ("_budget", "_connection", "_may_share", "_size", "reserved")

    def __init__(self, budget: OutboundBudget, connection: ServerConnection, size: int, may_share: bool) -> None:
        self._budget = budget
        self._connection = connection
        self._size = size
        self._may_share = may_share
        self.reserved = 0

    async def __aenter__(self) -> int:
        self.reserved = await self._budget.reserve(self._connection, self._size + _SPARE_BYTES, self._may_share)
        if not self.reserved:
            raise _ConnectionClosed
        if self.reserved > self._size:
            return self._size
        return min(self._size, self._budget.share // 2)  # the commit that fills the page may fit as well

    async def __aexit__(self, *_: object) -> None:
        self._budget.release(self._connection, self.reserved)


class OutboundBudget:
    """Counts unsent and reserved bytes. Call `count` whenever `ServerConnection.unsent_bytes` has changed."""

    def __init__(self, connection_bytes_max: int, bytes_max: int, connections_max: int = 0) -> None:
        """`connections_max`: as many have a `share`, the bytes of a page for one that holds nothing; 0: none has."""
        self.share = bytes_max // 4 // connections_max if connections_max else 0
        self._connection_bytes_max = connection_bytes_max
        self.bytes_max = bytes_max - self.share * connections_max
        self._waiting: dict[ServerConnection, deque[trio.Event]] = {}
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether no page may be begun, except within the share of a connection."""
        return self.bytes >= self.bytes_max

    def limits_now(self, requests_max: int, bytes_max: int) -> tuple[int, int]:
        """Returns how many unanswered requests, and of how many bytes of answers, are a reason not to take more from a
        connection: as given, or one and its share, while the answers of all are over the bound.
        """
        return (1, min(self.share, bytes_max)) if self.bytes >= self.bytes_max else (requests_max, bytes_max)

    def allowance(self, connection: ServerConnection) -> int | None:
        """Returns how many bytes a page may have that is made now; None: as many as it wants. 0: it has to wait."""
        if self.bytes < self.bytes_max:
            return None
        return 0 if _holds_any(connection) else self.share // 2

    def has_room(self, connection: ServerConnection) -> bool:
        """Whether the connection's own bound allows another page."""
        return connection.unsent_bytes + connection.reserved_bytes < self._connection_bytes_max

    async def make_page(
        self, connection: ServerConnection, size: int, make: Callable[[Reservation], Awaitable[T]], measure: Callable[[T], int]
    ) -> T | None:
        """Returns a page that fits into the budget, or None if the connection is closed.

        `make` must read the page inside `async with reservation as bytes_max:`, and is called again if the page grew far past
        that and does not fit. `measure` returns a page's size in bytes.
        """
        may_share = True
        while True:
            reservation = Reservation(self, connection, size, may_share)
            try:
                page = await make(reservation)
            except _ConnectionClosed:
                return None
            size, may_share = measure(page), False
            if self.fits(connection, size, reservation.reserved):
                return page
            del page  # else it would be in memory, uncounted, until there is room to make it again

    async def reserve(self, connection: ServerConnection, size: int, may_share: bool = False) -> int:
        """Waits until a page of about `size` bytes may be made; returns what it reserved, 0 if the connection is closed.

        With `may_share` that is the connection's share, if it holds nothing and all other room is taken. Call `release` when
        the page is made. Its real size is counted when it is sent.
        """
        while not connection.closed:
            if not self.has_room(connection):
                self._wake_next()
                await connection.wait_for_room()
            elif self.full and may_share and self.share and not _holds_any(connection):
                return self._take(connection, min(size, self.share))
            elif self.full:
                await self._wait_for_room(connection)
            else:
                return self._take(connection, size)
        self._wake_next()
        return 0

    def _take(self, connection: ServerConnection, size: int) -> int:
        connection.reserved_bytes += size
        self.bytes += size
        self._wake_next()
        return size

    def release(self, connection: ServerConnection, size: int) -> None:
        """Undoes a `reserve`: the page was made, or will not be."""
        connection.reserved_bytes -= size
        self.bytes -= size
        if connection.room_wanted and self.has_room(connection):
            connection.room.unpark_all()
        self._wake_next_of(connection)

    def fits(self, connection: ServerConnection, size: int, reserved: int) -> bool:
        """Whether a page of `size` bytes may be sent after its reservation of `reserved` bytes was released."""
        return size <= reserved or (self.has_room(connection) and not self.full)

    def count(self, connection: ServerConnection) -> None:
        """Adjusts the total to the connection's unsent bytes."""
        self.bytes += connection.unsent_bytes - connection.counted_bytes
        connection.counted_bytes = connection.unsent_bytes
        if self._waiting:
            self._wake_next_of(connection)

    def forget(self, connection: ServerConnection) -> None:
        """Subtracts what a closed connection did not read."""
        self.bytes -= connection.counted_bytes
        connection.counted_bytes = 0
        for waiter in self._waiting.pop(connection, ()):
            waiter.set()
        self._wake_next()

    def check_invariants(self, connections: Iterable[ServerConnection]) -> None:
        """For tests, between two steps of tasks. Raises AssertionError unless the total is what these connections hold: all
        that hold any of it, also those that were closed while a page was made.
        """
        counted = {each.title: (each.counted_bytes, each.reserved_bytes) for each in connections}
        total = sum(each.counted_bytes + each.reserved_bytes for each in connections)
        assert self.bytes == total, f"{self.bytes} bytes are counted in all, (unsent, reserved) of connections: {counted}"
        for connection in connections:
            none = not connection.closed or not connection.counted_bytes
            assert none, f"{connection.title} is closed, and {connection.counted_bytes} bytes of it are counted"
        for connection, waiters in self._waiting.items():
            assert waiters, f"{connection.title} is among those that wait, with no page"

    def blocking(self, connections: Iterable[ServerConnection], now: float) -> Iterator[ServerConnection]:
        """Yields connections to close so that waiting pages get room. Close each before the next is requested."""
        if not self._waiting:
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

    async def _wait_for_room(self, connection: ServerConnection) -> None:
        waiter = trio.Event()
        self._waiting.setdefault(connection, deque()).append(waiter)
        try:
            await waiter.wait()
        except trio.Cancelled:
            waiters = self._waiting.get(connection, ())
            if waiter in waiters:
                self._remove(connection, waiter)
            else:
                self._wake_next()  # it was woken: another one uses the room
            raise

    def _wake_next(self) -> None:
        """Wakes one waiter, which wakes the next: waking all of them would let all but one find no room."""
        if self._waiting and not self.full:
            self._wake(next(iter(self._waiting)))

    def _wake_next_of(self, connection: ServerConnection) -> None:
        """Wakes one waiter, and one of this connection if it holds nothing any more, which may use its share."""
        if self._waiting:
            if self.share and connection in self._waiting and not _holds_any(connection):
                self._wake(connection)
            self._wake_next()

    def _wake(self, connection: ServerConnection) -> None:
        waiter = self._waiting[connection][0]
        self._remove(connection, waiter)
        waiter.set()

    def _remove(self, connection: ServerConnection, waiter: trio.Event) -> None:
        """Forgets a waiter. Those of other connections are next."""
        waiters = self._waiting.pop(connection)
        waiters.remove(waiter)
        if waiters:
            self._waiting[connection] = waiters


def _holds_any(connection: ServerConnection) -> bool:
    return bool(connection.unsent_bytes or connection.reserved_bytes)
