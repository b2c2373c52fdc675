"""PULL: pages of messages, at once or when some come.

What is in memory is answered on the spot, without a task. A pull that waits is a task that sleeps, and reserves nothing.
"""

from __future__ import annotations

import logging
import math
import selectors
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.pulling import Pulled
from eventstore.broker.search import Search
from eventstore.errors import EventStoreError, Overloaded, ReadFailed, ShuttingDown
from eventstore.protocol import encode_error, encode_messages
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.message_answers import QueuePage
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate

_PER_CONNECTION_MAX: Final = 64
_QUEUES_MAX: Final = 250_000  # that all pulls together wait for, some hundred bytes each
_QUEUES_A_PULL: Final = 16  # what waiting costs beside its queues, in queues
_log = logging.getLogger(__name__)


class _Waiting:
    """A pull that is not answered yet; ends with its connection. `owed`: the first look is still due, which is not a wait."""

    def __init__(self, connection: Connection, request_id: int, weight: int) -> None:
        self.connection = connection
        self.request_id = request_id
        self.weight = weight
        self.scope = trio.CancelScope()
        self.owed = True

    def cancel(self) -> None:
        self.scope.cancel()


class MessagePulls:
    """All pulls of all connections."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self._gate: Gate | None = None
        self._waiting: set[_Waiting] = set()
        self._weight = 0
        self._ended = trio.lowlevel.ParkingLot()
        self._stopping = False

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def count(self) -> int:
        """How many are not answered yet."""
        return len(self._waiting)

    def begin(self, connection: Connection, request_id: int, request: Pull) -> None:
        """The answer follows.

        Raises:
            ShuttingDown, Overloaded, UnknownTopic, UnknownQueue, InvalidArgument
        """
        if self._stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if request_id in connection.endings or len(connection.endings) >= _PER_CONNECTION_MAX:
            raise Overloaded(
                f"request {request_id} waits already, or {_PER_CONNECTION_MAX} pulls and subscriptions of this connection do, "
                "the limit; ask for several queues in one pull",
                limit=_PER_CONNECTION_MAX,
                value=len(connection.endings),
            )
        weight = _QUEUES_A_PULL + len(request.wants)
        if self._weight + weight > _QUEUES_MAX:
            raise Overloaded(f"the pulls of all connections wait for {_QUEUES_MAX} queues, the limit", limit=_QUEUES_MAX)
        search = self._broker.pulls.search(
            request.wants, messages_max=request.messages_max, bytes_max=request.bytes_max, wait_s=request.wait_ms / 1000
        )
        if self._answered_now(connection, request_id, search):
            return
        self._weight += weight
        waiting = _Waiting(connection, request_id, weight)
        connection.endings[request_id] = waiting
        connection.owed += 1
        self._waiting.add(waiting)
        if not search.left:
            self._looked(waiting)
        self._nursery.start_soon(self._serve, waiting, search, request.bytes_max)

    def _answered_now(self, connection: Connection, request_id: int, search: Search) -> bool:
        """Answers out of memory, if the answer is there, and room for it."""
        assert self._gate is not None
        outgoing = self._gate.outgoing
        if not outgoing.has_room(connection) or outgoing.full:
            return False
        try:
            pulled = self._broker.pulls.answer_now(search)
            if pulled is None:
                return False
            pieces: Sequence[bytes] = _pieces(request_id, pulled)
        except Exception as error:
            pieces = (encode_error(request_id, _failure(error)),)
        for piece in pieces:
            self._gate.send(connection, piece)
        outgoing.count(connection)
        return True

    def stop(self) -> None:
        """Whoever waits is told to ask elsewhere, and whoever comes."""
        self._stopping = True
        for waiting in self._waiting:
            waiting.cancel()

    async def drain(self) -> None:
        """Returns when nobody waits any more. After `stop`."""
        while self._waiting:
            await self._ended.park()

    async def _serve(self, waiting: _Waiting, search: Search, bytes_max: int) -> None:
        assert self._gate is not None
        pieces: Sequence[bytes] = ()
        try:
            with waiting.scope:
                pieces = await self._answer(waiting, search, bytes_max)
        except Exception as error:
            pieces = (encode_error(waiting.request_id, _failure(error)),)
        self._looked(waiting)
        self._waiting.discard(waiting)
        self._weight -= waiting.weight
        self._ended.unpark_all()
        if waiting.connection.endings.get(waiting.request_id) is not waiting:
            return  # UNSUBSCRIBE ended it, or its connection is closed
        del waiting.connection.endings[waiting.request_id]
        if waiting.scope.cancel_called:
            pieces = (encode_error(waiting.request_id, ShuttingDown("the server is stopping; connect again later")),)
        for piece in pieces:
            self._gate.send(waiting.connection, piece)
        self._gate.flush()

    async def _answer(self, waiting: _Waiting, search: Search, size: int) -> list[bytes]:
        assert self._gate is not None
        while True:
            pulled = await self._broker.pulls.finish(search, lambda: self._reserved(waiting, size))  # noqa: B023 # not later
            made = sum(len(page.records) for page in pulled)
            if self._gate.outgoing.fits(waiting.connection, made, size):
                return _pieces(waiting.request_id, pulled)
            size = made
            search.restart()

    @asynccontextmanager
    async def _reserved(self, waiting: _Waiting, size: int) -> AsyncIterator[None]:
        assert self._gate is not None
        outgoing, connection = self._gate.outgoing, waiting.connection
        if not await outgoing.reserve(connection, size):
            await trio.sleep_forever()  # the connection is closed, and cancels this
        try:
            yield
        finally:
            outgoing.release(connection, size)
            if self._looked(waiting) and not connection.watched & selectors.EVENT_READ:
                self._gate.flush()  # it is read from again, though nothing is sent

    def _looked(self, waiting: _Waiting) -> bool:
        """The connection may have so many waiting pulls, and ask for other things meanwhile."""
        assert self._gate is not None
        was_owed, waiting.owed = waiting.owed, False
        if was_owed:
            waiting.connection.owed -= 1
            self._gate.look_again(waiting.connection)
        return was_owed


def _failure(error: Exception) -> EventStoreError:
    if isinstance(error, EventStoreError):
        return error
    _log.error("a pull failed", exc_info=error)
    return ReadFailed(f"the pull failed inside the server: {type(error).__name__}")


def _pieces(request_id: int, pulled: Sequence[Pulled]) -> list[bytes]:
    records = [page.records for page in pulled if page.count]
    return encode_messages(request_id, records, sum(page.count for page in pulled), map(_page_of, pulled))


def _page_of(pulled: Pulled) -> QueuePage:
    due_ms = None if pulled.due_s is None else math.ceil(pulled.due_s * 1000)
    return QueuePage(pulled.next_offset, pulled.begin, pulled.end, pulled.clamped, due_ms, pulled.count)
