"""Answers PULL with pages of messages, at once or as soon as there are some.

A pull is answered from memory without a task if possible. A waiting pull is a sleeping task, and reserves no memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import ClassVar, Final

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.groups.attempts import HeldPage
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.broker.pending_pull import PendingPull
from eventstore.errors import Overloaded, ShuttingDown
from eventstore.protocol import encode_error, encode_messages
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.message_answers import QueuePage
from eventstore.records.message import HEADER
from eventstore.server.net.budgets import Reservation
from eventstore.server.net.connection import BOUND_MAX, ServerConnection
from eventstore.server.net.deferred_replies import explain_failed_read
from eventstore.server.net.gate import Gate
from eventstore.server.net.request_task import RequestTask
from eventstore.server.net.scheduler import NOTED_S
from eventstore.timing.work_time import WorkTime, counted

_QUEUES_MAX: Final = 250_000  # of all waiting pulls, some hundred bytes each
_QUEUES_A_PULL: Final = 16  # the cost of a waiting pull without its queues, in queues
_TASK_S: Final = 60e-6  # what the task of a waiting pull takes of the event loop until it waits
_FIRST: Final = HEADER.part("queue_offset")
_log = logging.getLogger(__name__)


class _Waiting:
    """A pull that is not answered yet; ends with its connection. `owed`: counted as a request, until its first look.
    `spent`: what its task took since that was charged.
    """

    use = None
    light: ClassVar[bool] = False

    def __init__(self, task: RequestTask, connection: ServerConnection, request_id: int, weight: int) -> None:
        self.task = task
        self.connection = connection
        self.request_id = request_id
        self.weight = weight
        self.owed = True
        self.spent = WorkTime()

    def cancel(self) -> None:
        self.task.cancel()


class MessagePulls:
    """All pulls of all connections."""

    def __init__(self, gate: Gate, broker: Broker, nursery: trio.Nursery) -> None:
        self._gate = gate
        self._broker = broker
        self._nursery = nursery
        self._waiting: set[_Waiting] = set()
        self._weight = 0
        self._ended = trio.lowlevel.ParkingLot()
        self._stopping = False

    @property
    def count(self) -> int:
        """The number of pulls that are not answered yet."""
        return len(self._waiting)

    def begin(self, connection: ServerConnection, request_id: int, request: Pull) -> None:
        """Takes a PULL; it is answered at once or later.

        Raises:
            ShuttingDown, Overloaded, UnknownTopic, UnknownQueue, InvalidArgument
        """
        if self._stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if not connection.can_bind(request_id):
            raise Overloaded(
                f"request {request_id} waits already, or {BOUND_MAX} pulls and subscriptions of this connection do, "
                "the limit; ask for several queues in one pull",
                limit=BOUND_MAX,
                value=len(connection.bound),
            )
        connection.note_use(f"reads {request.wants[0][0]}" if request.group is None else f"{request.member} of {request.group}")
        weight = _QUEUES_A_PULL + len(request.wants)
        if self._weight + weight > _QUEUES_MAX:
            raise Overloaded(f"the pulls of all connections wait for {_QUEUES_MAX} queues, the limit", limit=_QUEUES_MAX)
        pending = self._broker.pulls.begin(
            request.wants,
            messages_max=request.messages_max,
            bytes_max=request.bytes_max,
            wait_s=request.wait_ms / 1000,
            owner=connection,
        )
        if self._answered_now(connection, request_id, request, pending):
            return
        self._weight += weight
        waiting = _Waiting(RequestTask(self._gate, connection), connection, request_id, weight)
        connection.bind(request_id, waiting)
        self._gate.owe(connection, _TASK_S)
        self._waiting.add(waiting)
        if not pending.left:
            self._settle(waiting)
        self._nursery.start_soon(self._serve, waiting, pending, request)

    def _answered_now(self, connection: ServerConnection, request_id: int, request: Pull, pending: PendingPull) -> bool:
        """Answers from memory if possible, and if there is room for the answer; returns whether it did."""
        outbound = self._gate.outbound
        if not outbound.has_room(connection) or outbound.full:
            return False
        try:
            pulled = self._broker.pulls.answer_now(pending)
            if pulled is None:
                return False
            pieces: Sequence[bytes] = self._pieces(request_id, request, pulled)
        except Exception as error:
            pieces = (encode_error(request_id, _explain(error)),)
        self._gate.send_page(connection, *pieces)
        return True

    def stop(self) -> None:
        """Answers all waiting pulls, and all later ones, with ShuttingDown."""
        self._stopping = True
        for waiting in self._waiting:
            waiting.cancel()

    async def drain(self) -> None:
        """Waits until no pull waits. Call it after `stop`."""
        while self._waiting:
            await self._ended.park()

    async def _serve(self, waiting: _Waiting, pending: PendingPull, request: Pull) -> None:
        pieces: Sequence[bytes] = ()
        try:
            with waiting.task.begin():
                pieces = await counted(self._answer(waiting, pending, request), waiting.spent)
        except Exception as error:
            pieces = (encode_error(waiting.request_id, _explain(error)),)
        self._settle(waiting)
        self._charge(waiting)
        self._waiting.discard(waiting)
        self._weight -= waiting.weight
        self._ended.unpark_all()
        if not waiting.connection.unbind(waiting.request_id, waiting):
            return  # UNSUBSCRIBE ended it, or its connection is closed
        if waiting.task.scope.cancel_called:
            pieces = (encode_error(waiting.request_id, ShuttingDown("the server is stopping; connect again later")),)
        for piece in pieces:
            self._gate.send(waiting.connection, piece)
        self._gate.flush()

    async def _answer(self, waiting: _Waiting, pending: PendingPull, request: Pull) -> Sequence[bytes]:
        attempts = 0

        async def make(reservation: Reservation) -> list[QueueRead]:
            nonlocal attempts
            attempts += 1
            if attempts > 1:  # what was found grew past its reservation and did not fit
                pending.restart()
            return await self._broker.pulls.finish(pending, partial(self._reserved, waiting, pending, reservation))

        pulled = await self._gate.outbound.make_page(waiting.connection, request.bytes_max, make, _length)
        return () if pulled is None else self._pieces(waiting.request_id, request, pulled)

    @asynccontextmanager
    async def _reserved(self, waiting: _Waiting, pending: PendingPull, reservation: Reservation) -> AsyncIterator[None]:
        async with reservation as bytes_max:
            pending.bytes_max = min(pending.bytes_max, bytes_max)
            yield
        self._charge(waiting)
        if self._settle(waiting) and not waiting.connection.is_read:
            self._gate.flush()  # reading resumes, although nothing is sent

    def _pieces(self, request_id: int, request: Pull, pulled: Sequence[QueueRead]) -> list[bytes]:
        found = [page.records for page in pulled if page.count]
        if found and request.group is not None and request.member is not None:
            self._broker.groups.handed_out(request.group, request.member, _held(request, pulled))
        return encode_messages(request_id, found, sum(page.count for page in pulled), map(_page_of, pulled))

    def _charge(self, waiting: _Waiting) -> None:
        """Has its connection pay for what the task took that is worth it, besides `_TASK_S`: it may read on and on."""
        seconds = waiting.spent.seconds - _TASK_S
        if seconds > NOTED_S:
            waiting.spent.seconds = _TASK_S
            self._gate.scheduler.charge(waiting.connection, seconds)

    def _settle(self, waiting: _Waiting) -> bool:
        """Stops counting a pull that only waits: its connection may have many of those, and ask for other things meanwhile."""
        was_owed, waiting.owed = waiting.owed, False
        if was_owed:
            self._gate.settle(waiting.connection)
        return was_owed


_explain = partial(explain_failed_read, "pull")


def _length(pulled: Sequence[QueueRead]) -> int:
    return sum(len(page.records) for page in pulled)


def _held(request: Pull, pulled: Sequence[QueueRead]) -> Iterator[tuple[tuple[str, int], HeldPage]]:
    """Returns the pages with messages, by topic and queue."""
    for (topic, queue, offset, _), page in zip(request.wants, pulled, strict=True):
        if page.count:
            yield (topic, queue), HeldPage(offset, page.next_offset, _FIRST.unpack_from(page.records)[0], page.count)


def _page_of(pulled: QueueRead) -> QueuePage:
    due_ms = None if pulled.due_s is None else math.ceil(pulled.due_s * 1000)
    return QueuePage(pulled.next_offset, pulled.begin, pulled.end, pulled.clamped, due_ms, pulled.count)
