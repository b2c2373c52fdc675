"""Answers that take a while: made by a task, in the order they were asked for, as long as the client takes its answers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import trio

from eventstore.chunks.files import NO_SPACE
from eventstore.errors import EventStoreError, StorageFull
from eventstore.protocol import encode_error
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate

LIST_BYTES: Final = 64 * 1024
_log = logging.getLogger(__name__)

Make: TypeAlias = Callable[[], Awaitable[Sequence[bytes]]]
"""Makes the pieces of an answer's frame."""


class Replies:
    """Requests of one connection are carried out one after the other (or `at_once` of them), those of others meanwhile."""

    def __init__(self, nursery: trio.Nursery, *, at_once: int = 1) -> None:
        self._nursery = nursery
        self._at_once = at_once
        self._queued: dict[Connection, deque[tuple[int, Make, int | None]]] = {}
        self._workers: dict[Connection, int] = {}
        self._gate: Gate | None = None

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def later(self, connection: Connection, request_id: int, make: Make, size: int | None = None) -> None:
        """The answer follows. `size`: about how many bytes it will have. It is made when there is room for it, again where it
        has become larger, and not at all for a connection that was closed. Without, it is small; what was asked is done once.
        """
        connection.owed += 1
        self._queued.setdefault(connection, deque()).append((request_id, make, size))
        if self._workers.get(connection, 0) < self._at_once:
            self._workers[connection] = self._workers.get(connection, 0) + 1
            self._nursery.start_soon(self._work, connection)

    async def _work(self, connection: Connection) -> None:
        queued = self._queued[connection]
        try:
            while queued:
                request_id, make, size = queued.popleft()
                await self._answer(connection, request_id, make, size)
        finally:
            self._workers[connection] -= 1
            if not self._workers[connection]:
                del self._workers[connection]
                del self._queued[connection]

    async def _answer(self, connection: Connection, request_id: int, make: Make, size: int | None) -> None:
        assert self._gate is not None
        if size is None:
            self._send(connection, await self._made(request_id, make))
            return
        outgoing = self._gate.outgoing
        while await outgoing.reserve(connection, size):
            try:
                pieces = await self._made(request_id, make)
            finally:
                outgoing.release(connection, size)
            made = sum(map(len, pieces))
            if outgoing.fits(connection, made, size):
                self._send(connection, pieces)
                return
            size = made

    def _send(self, connection: Connection, pieces: Sequence[bytes]) -> None:
        assert self._gate is not None
        connection.owed -= 1
        for piece in pieces:
            self._gate.send(connection, piece)
        self._gate.flush()

    async def _made(self, request_id: int, make: Make) -> Sequence[bytes]:
        try:
            return await make()
        except Exception as error:
            return (encode_error(request_id, failure_of(error)),)


def failure_of(error: Exception) -> EventStoreError:
    """What the client is told; what only whoever runs the server can mend is logged as well."""
    if isinstance(error, EventStoreError):
        return error
    _log.error("a request failed", exc_info=error)
    if not isinstance(error, OSError):
        return EventStoreError(f"it failed inside the server: {type(error).__name__}")
    if error.errno in NO_SPACE:
        return StorageFull("the disk is full, and it could not be stored; free some space and ask again")
    return EventStoreError(f"it could not be stored: {error.strerror}; look at the disk and ask again")
