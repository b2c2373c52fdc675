"""Deferred replies: answers that take time, made by tasks in the order of the requests, as fast as the client reads them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import trio

from eventstore.chunks.files import NO_SPACE
from eventstore.errors import EventStoreError, ReadFailed, StorageFull
from eventstore.protocol import encode_error
from eventstore.server.net.budgets import Reservation
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.net.scheduler import SLICE_S
from eventstore.timing.work_time import WorkTime, counted

LIST_BYTES: Final = 64 * 1024
_log = logging.getLogger(__name__)

Make: TypeAlias = Callable[[], Awaitable[Sequence[bytes]]]
"""Makes the pieces of an answer's frame."""

MakePage: TypeAlias = Callable[[int], Awaitable[Sequence[bytes]]]
"""Makes the pieces of a page's frame, of about as many bytes."""


class DeferredReplies:
    """Carries out a connection's requests one after the other (or `at_once` of them); connections do not wait for each other.
    What a request takes is charged to its connection.

    `explain` turns an exception into the error to answer.
    """

    def __init__(
        self,
        gate: Gate,
        nursery: trio.Nursery,
        *,
        at_once: int = 1,
        explain: Callable[[Exception], EventStoreError] | None = None,
    ) -> None:
        self._gate = gate
        self._nursery = nursery
        self._at_once = at_once
        self._explain = explain or explain_failure
        self._queued: dict[ServerConnection, deque[tuple[int, MakePage, int | None]]] = {}
        self._workers: dict[ServerConnection, int] = {}

    def later(self, connection: ServerConnection, request_id: int, make: Make, size: int | None = None) -> None:
        """Answers the request with what `make` returns.

        `size`: about how many bytes the answer will have. It is made when there is room for it, made again if it grew past
        that, and not made at all if the connection is closed. Without a size the answer is small, and `make` runs exactly
        once.
        """
        self.page_later(connection, request_id, lambda _: make(), size)

    def page_later(self, connection: ServerConnection, request_id: int, make: MakePage, size: int | None) -> None:
        """Does the same with an answer that can be smaller, if there is little room."""
        self._gate.owe(connection)
        self._queued.setdefault(connection, deque()).append((request_id, make, size))
        if self._workers.get(connection, 0) < self._at_once:
            self._workers[connection] = self._workers.get(connection, 0) + 1
            self._nursery.start_soon(self._work, connection)

    async def _work(self, connection: ServerConnection) -> None:
        queued, scheduler, busy_s = self._queued[connection], self._gate.scheduler, 0.0
        try:
            while queued:
                request_id, make, size = queued.popleft()
                expected = await scheduler.answer(connection)
                spent = WorkTime()
                await counted(self._answer(connection, request_id, make, size), spent)
                scheduler.answered(connection, spent.seconds, expected, spent.waited)
                busy_s += spent.seconds
                if busy_s > SLICE_S:  # what is made without waiting for anything lets no other task run
                    busy_s = 0.0
                    await trio.lowlevel.checkpoint()
        finally:
            self._workers[connection] -= 1
            if not self._workers[connection]:
                del self._workers[connection]
                del self._queued[connection]

    async def _answer(self, connection: ServerConnection, request_id: int, make: MakePage, size: int | None) -> None:
        async def page(reservation: Reservation) -> Sequence[bytes]:
            async with reservation as bytes_max:
                return await self._made(request_id, make, bytes_max)

        if size is None:
            pieces: Sequence[bytes] | None = await self._made(request_id, make, 0)
        else:
            pieces = await self._gate.outbound.make_page(connection, size, page, _length)
        if pieces is not None:
            self._gate.answer(connection, *pieces)
            self._gate.flush()

    async def _made(self, request_id: int, make: MakePage, bytes_max: int) -> Sequence[bytes]:
        try:
            return await make(bytes_max)
        except Exception as error:
            return (encode_error(request_id, self._explain(error)),)


def _length(pieces: Sequence[bytes]) -> int:
    return sum(map(len, pieces))


def explain_failure(error: Exception) -> EventStoreError:
    """Returns the error to answer after a failed write; logs what only an operator can fix."""
    if isinstance(error, EventStoreError):
        return error
    _log.error("a request failed", exc_info=error)
    if not isinstance(error, OSError):
        return EventStoreError(f"it failed inside the server: {type(error).__name__}")
    if error.errno in NO_SPACE:
        return StorageFull("the disk is full, and it could not be stored; free some space and ask again")
    return EventStoreError(f"it could not be stored: {error.strerror}; look at the disk and ask again")


def explain_failed_read(what: str, error: Exception) -> EventStoreError:
    """Returns the error to answer after a failed `what`, such as "read"; logs what is a bug of the server."""
    if isinstance(error, EventStoreError):
        return error
    _log.error("a %s failed", what, exc_info=error)
    return ReadFailed(f"the {what} failed inside the server: {type(error).__name__}")
