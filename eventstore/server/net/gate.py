"""The gate: every socket of the server in one task.

A task per connection costs about 25 µs a request in wake-ups alone. Here a turn asks the operating system once which sockets
are ready, receives from each, passes all appends of the turn on as one batch, and sends each connection's answers at once. Trio
waits on the selector's own descriptor: the gate is one task among others, and stops, sleeps and cancels like them.

A client affects only its own connection: any failure while serving it closes it and is logged. What it may make the server hold
is bounded: requests not answered yet, and answers not read yet. At the bound its requests wait, here, in the kernel and at the
client. The gate is made first and handed to the handlers; `run` takes what serves the requests. `flush` asks `may_send` first.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from typing import Final

import trio

from eventstore.errors import EventStoreError
from eventstore.protocol import encode_error, encode_goodbye
from eventstore.server.net.acceptor import Acceptor
from eventstore.server.net.budgets import Backlog, InboundBudget, OutboundBudget
from eventstore.server.net.busy_polling import CAN_BUSY_POLL, Ready, is_eager, poll_busily
from eventstore.server.net.connection import BUSY, OBJECT_BYTES, GateLimits, ServerConnection
from eventstore.server.net.fair_turns import NOTED_S, FairTurns
from eventstore.server.net.run_queue import QUICK_S_MAX
from eventstore.server.net.timeouts import Timeouts
from eventstore.server.net.tls_connection import MakeConnection

_ANSWER_BYTES_PER_TURN: Final = 1024 * 1024  # to one connection, before the others are served
_GATHERED_TURNS_MAX: Final = 3
_END_S: Final = 60e-6  # what a request takes of the loop that ends with its connection
_COMPLAINT_SECONDS: Final = 60.0  # malformed input is logged at most this often
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_log = logging.getLogger(__name__)


class Gate:
    """Accepts, receives and sends.

    `holding`: the connections with received bytes that are not processed yet; the inbound budget looks at no others.
    """

    def __init__(self, listener: socket.socket, limits: GateLimits, make: MakeConnection = ServerConnection) -> None:
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._complaint_due = 0.0
        self._served_bytes_max = min(limits.unsent_bytes_max, _ANSWER_BYTES_PER_TURN)
        self._touched: set[ServerConnection] = set()
        self._settled: trio.Event | None = None
        self._handle: Callable[[ServerConnection, bytes], None]
        self._end_turn: Callable[[], None]
        self.may_send: Callable[[], bool] | None = None
        self.connections: dict[ServerConnection, None] = {}
        self.holding: set[ServerConnection] = set()
        self.outbound = OutboundBudget(limits.unsent_bytes_max, limits.outgoing_bytes_max, limits.connections_max)
        self.acceptor = Acceptor(listener, self._selector, self.connections, limits.connections_max, self.drop, make)
        self._inbound = InboundBudget(limits.incoming_bytes_max, self.holding, self._turn_away)
        self.turns = FairTurns(self.connections)
        self._timeouts = Timeouts(limits, self.connections, self.outbound, self.drop)

    # -- the turn -----------------------------------------------------------------------------------------------------

    async def run(
        self, handle: Callable[[ServerConnection, bytes], None], end_turn: Callable[[], None], backlog: Backlog
    ) -> None:
        """Serves until cancelled.

        `handle` gets each payload; `end_turn` is called after each turn. While `backlog` is full, nothing is received.
        """
        self._handle, self._end_turn = handle, end_turn
        self.acceptor.open()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.turns.run, lambda rested: self._watch(rested, trio.current_time()))
                await self._serve(backlog)
        finally:
            for connection in list(self.connections):
                self.drop(connection, after_answers=True)
            self._selector.close()
            self.acceptor.close()

    async def _serve(self, backlog: Backlog) -> None:
        descriptor = self._selector.fileno()
        while True:
            await self.turns.wait(descriptor)
            if backlog.full:
                await self._timeouts.stall(backlog)
            ready = self._selector.select(0)
            eager = CAN_BUSY_POLL and is_eager(ready)
            if self.turn(ready) == 1 and eager:
                while poll_busily(self._selector, self.turn, self.turns.others_wait, backlog):
                    await trio.lowlevel.checkpoint()  # other tasks run

    def turn(self, events: Ready) -> int:
        """Serves all ready sockets; returns how many there were.

        What a lone client is still sending joins the batch, instead of waiting until its first part is on the disk.
        """
        now = self.turns.begin()
        self._take(events, now)
        more = events
        for _ in range(_GATHERED_TURNS_MAX):
            if len(more) != 1:
                break
            more = self._selector.select(0)
            self._take(more, now)
        self.turns.serve_queue(self._receive, now)
        self._end_turn()
        self._inbound.end_turn()
        self.flush()
        self.turns.end()
        return max(len(events), len(more)) + len(self.turns.queue)

    def _take(self, events: Ready, now: float) -> None:
        queue, alone = self.turns.queue, len(events) == 1
        for key, ready in self.turns.in_order(events):
            connection = key.data
            if connection is None:
                for newcomer in self.acceptor.accept(now):
                    self.connections[newcomer] = None
                    self._watch(newcomer, now)
                continue
            if not connection.greeted and self.turns.newcomers_wait():
                continue  # it is as ready in the next turn
            if ready & _WRITE and not connection.closed:
                connection.writable = True
                self._touched.add(connection)
            wants = ready & _WRITE and not connection.resting if connection.pending else ready & _READ
            if not wants or connection.closed or connection.queued:
                continue
            if queue.spent_s < QUICK_S_MAX and (connection.busy < BUSY or (alone and not queue)):
                if connection.busy < BUSY and not connection.slow_answer_s:
                    queue.quick_at = now
                    queue.quick += 1
                self._receive(connection, now)
            else:
                queue.add(connection)
                self._touched.add(connection)

    def _receive(self, connection: ServerConnection, now: float) -> None:
        """Handles received or pending payloads, until the connection reaches a limit."""
        try:
            clock, pending = self.turns.clock, connection.pending
            began = clock()
            if not pending:
                received = connection.receive(now)
                if received is None:
                    self.drop(connection)
                    return
                connection.keep(received)
            requests_max, bytes_max = self.outbound.limits_now(self._limits.requests_max, self._served_bytes_max)
            at = clock()
            end = self.turns.slice_ends(at)
            while pending and at < end:
                if connection.owed >= requests_max or connection.unsent_bytes >= bytes_max or connection.held:
                    break
                payload = pending.popleft()
                connection.pending_bytes -= len(payload) + OBJECT_BYTES
                self._handle(connection, payload)
                if connection.closed:
                    return
                at = clock()
            took, connection.due_s = at - began + connection.due_s, 0.0
            self.turns.queue.spent_s += took
            if took > NOTED_S or pending:
                self.turns.served(connection, took)
            else:
                connection.busy = 0
            if connection.reader.failed is not None and not pending:
                raise connection.reader.failed
        except EventStoreError as error:  # the framing is broken: report it, then hang up
            if now >= self._complaint_due:
                self._complaint_due = now + _COMPLAINT_SECONDS
                _log.warning("closing a connection (%s): %s", connection.name or "no hello", error.message)
            self._turn_away(connection, error, after_answers=True)
        except Exception:
            _log.exception("serving a client failed; its connection is closed")
            self.drop(connection)
        else:
            self._touched.add(connection)  # `flush` updates the selector after sending
            if connection.holds_bytes:
                self.holding.add(connection)
            else:
                self.holding.discard(connection)

    # -- answers ------------------------------------------------------------------------------------------------------

    def owe(self, connection: ServerConnection, due_s: float = 0.0) -> None:
        """Counts a request that will be answered later, by `answer`, and will take about `due_s` of the loop's time."""
        connection.owed += 1
        connection.due_s += due_s

    def answer(self, connection: ServerConnection, *frames: bytes) -> None:
        """Queues the answer to a request that `owe` counted."""
        connection.owed -= 1
        if not connection.closed:
            for frame in frames:
                connection.send(frame)
            self._touched.add(connection)

    def settle(self, connection: ServerConnection) -> None:
        """Stops counting a request; its connection may ask for more at the next `flush`."""
        connection.owed -= 1
        self._touched.add(connection)

    def send(self, connection: ServerConnection, frame: bytes) -> None:
        """Queues a frame, to be sent at the end of the turn or by the next `flush`."""
        if not connection.closed:
            connection.send(frame)
            self._touched.add(connection)

    def send_page(self, connection: ServerConnection, *frames: bytes) -> None:
        """Queues a page made on the event loop, and counts it at once: a turn may make many."""
        for frame in frames:
            self.send(connection, frame)
        self.outbound.count(connection)

    def flush(self) -> None:
        """Sends queued frames, if that is allowed now."""
        if self.may_send is not None and not self.may_send():
            return
        now = trio.current_time()
        touched, self._touched = self._touched, set()
        for connection in touched:
            if connection.closed:
                continue
            if connection.flush(now):
                if connection.unsent_bytes != connection.counted_bytes:
                    self.outbound.count(connection)
                self._watch(connection, now)
            else:
                self.drop(connection)
        self._check_settled()

    def _watch(self, connection: ServerConnection, now: float) -> None:
        """Registers what the connection waits for; it is not read while it has too many requests or unread answers.

        Pending requests are handled in a turn like all others: the connection waits to become writable as soon as it may
        ask for more.
        """
        waits_for_server = connection.held or connection.resting or connection.queued
        requests_max, bytes_max = self.outbound.limits_now(self._limits.requests_max, self._limits.unsent_bytes_max)
        may_ask = connection.owed < requests_max and connection.unsent_bytes < bytes_max and not waits_for_server
        waits = bool(connection.pending)
        wanted = (_READ if may_ask and not waits else 0) | (_WRITE if connection.unsent or (may_ask and waits) else 0)
        if connection.room and self.outbound.has_room(connection):
            connection.room.unpark_all()
        if wanted == connection.watched:
            return
        if wanted & ~connection.watched & _READ:
            connection.restart_timeouts(now)
        connection.watch(self._selector, wanted)

    def hold(self, connection: ServerConnection, why: int, held: bool = True) -> None:
        """Adds or removes a reason not to read from the connection. Takes effect at the next `flush`."""
        connection.held = connection.held | why if held else connection.held & ~why
        self._touched.add(connection)

    def check_invariants(self) -> None:
        """For tests, between two steps of tasks. Raises AssertionError with the connection that nothing will serve, or that is
        counted wrong. See also `OutboundBudget.check_invariants`.
        """
        self.turns.queue.check_invariants(self.connections)
        strangers = self.holding - self.connections.keys()
        assert not strangers, f"they hold bytes, and are not connected: {[each.title for each in strangers]}"
        for each in self.connections:
            each.check_invariants()
            assert not each.closed, f"{each.title} is closed, and among the open ones"
            most = self._limits.requests_max
            assert each.owed <= most, f"{each.title}: {each.owed} requests are taken and not answered, the limit is {most}"
            known = each in self.holding
            assert each.holds_bytes == known, f"{each.title} holds {each.held_bytes} bytes; the inbound budget knows: {known}"
            watched = self._selector.get_map().get(each.socket)
            events = 0 if watched is None else watched.events
            assert each.watched == events, f"{each.title}: watched is {each.watched}, registered are {events}"
            if each not in self._touched:  # else the next flush looks at it
                counts = each.unsent_bytes, each.counted_bytes
                assert counts[0] == counts[1], f"{each.title}: unsent and counted bytes are {counts}, and nothing will count it"
                assert not each.unsent or each.watched & _WRITE, f"{each.title} has unsent frames that nothing will send"

    # -- closing ------------------------------------------------------------------------------------------------------

    def drop(self, connection: ServerConnection, *, after_answers: bool = False) -> None:
        """Closes the connection, so that the client can still read its answers with `after_answers`. Its appends are stored."""
        if connection.closed:
            return
        if connection.watched:
            connection.watch(self._selector, 0)
        self.connections.pop(connection, None)
        self.holding.discard(connection)
        self.outbound.forget(connection)
        self.turns.queue.spent_s += len(connection.bound) * _END_S
        connection.hang_up() if after_answers else connection.close()
        self._check_settled()

    def _turn_away(self, connection: ServerConnection, error: EventStoreError, *, after_answers: bool = False) -> None:
        self.send(connection, encode_error(0, error))
        self.flush()
        self.drop(connection, after_answers=after_answers)

    async def run_timeouts(self) -> None:
        """Closes overdue connections, and resumes accepting after file descriptors ran out; until cancelled."""
        await self._timeouts.run(self.acceptor.open)

    def say_goodbye(self) -> None:
        """Stops accepting, and announces to all clients that the server is stopping."""
        self.acceptor.stop()
        for connection in list(self.connections):
            self.send(connection, encode_goodbye())
        self.flush()

    async def wait_until_settled(self) -> None:
        """Waits until every request is answered and every answer sent."""
        self._settled = trio.Event()
        self._check_settled()
        await self._settled.wait()

    def _check_settled(self) -> None:
        if self._settled is not None and not any(each.owed or each.unsent or each.pending for each in self.connections):
            self._settled.set()
