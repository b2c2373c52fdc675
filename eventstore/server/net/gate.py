"""The gate: every socket of the server in one task.

A task per connection costs about 25 µs a request in wake-ups alone. Here a turn asks the operating system once which sockets
are ready, receives from each, passes all appends of the turn on as one batch, and sends each connection's answers at once. Trio
waits on epoll's own descriptor: the gate is one task among others, and stops, sleeps and cancels like them. While a single
client asks again and again, the gate waits for it by itself, a millisecond at a time: a wake-up by trio costs as much as a
request. What the writer thread has written wakes the gate as a socket does, so that outcomes and requests share turns.

A client affects only its own connection: any failure while serving it closes it and is logged. What it may make the server hold
is bounded: requests not answered yet, and answers not read yet. At the bound its requests wait, here, in the kernel and at the
client. The gate is made first and handed to the handlers; `run` takes what serves the requests. `flush` asks `may_send` first.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Final

import trio

from eventstore.errors import EventStoreError
from eventstore.protocol import encode_error, encode_goodbye
from eventstore.server.net.acceptor import Acceptor
from eventstore.server.net.budgets import Backlog, InboundBudget, OutboundBudget
from eventstore.server.net.connection import BUSY, OBJECT_BYTES, GateLimits, ServerConnection
from eventstore.server.net.scheduler import LEDGER_S_MAX, NOTED_S, QUICK_S_MAX, TURN_S, Ready, Scheduler
from eventstore.server.net.timeouts import Timeouts
from eventstore.server.net.tls_connection import MakeConnection

_ANSWER_BYTES_PER_TURN: Final = 1024 * 1024  # to one connection, before the others are served
_GATHERED_TURNS_MAX: Final = 3
_END_S: Final = 60e-6  # what a request takes of the loop that ends with its connection
_COMPLAINT_SECONDS: Final = 60.0  # malformed input is logged at most this often
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_EAGER_S: Final = 0.01  # a client is waited for here whose last request is at most this old
_WAIT_S: Final = 0.001  # epoll counts in milliseconds
_STAY_S: Final = 0.002  # what other tasks wait for is not looked at for so long
_log = logging.getLogger(__name__)


class WakeUp:
    """A descriptor that becomes readable when any thread calls `wake`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open, self._lock = True, threading.Lock()

    def wake(self) -> None:
        with self._lock:
            if self._open:  # another file may have the number by now
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            self._open = False
            os.close(self.fd)


class OtherTasks(trio.abc.Instrument):
    """Whether tasks of the event loop besides this one may `wait` to run."""

    def __init__(self) -> None:
        self._own = trio.lowlevel.current_task()
        self.wait = True

    async def run(self) -> None:
        """Returns once those have run that wait now. Trio runs tasks in rounds, each in any order: after one checkpoint they
        are at least in the round that this task is in. So it takes two, unless none waits.
        """
        waited, self.wait = self.wait, False
        await trio.lowlevel.checkpoint()
        if waited or self.wait:
            self.wait = False
            await trio.lowlevel.checkpoint()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if task is not self._own:
            self.wait = True


class Gate:
    """Accepts, receives and sends.

    `holding`: the connections with received bytes that are not processed yet; the inbound budget looks at no others.
    """

    def __init__(self, listener: socket.socket, limits: GateLimits, make: MakeConnection = ServerConnection) -> None:
        self._limits = limits
        self._poll = select.epoll()
        self._ready = self._poll.poll
        self._written = WakeUp()
        self._others: OtherTasks
        self._by_fd: dict[int, ServerConnection] = {}
        self._newcomers: dict[ServerConnection, None] = {}
        self._complaint_due = 0.0
        self._served_bytes_max = min(limits.unsent_bytes_max, _ANSWER_BYTES_PER_TURN)
        self._touched: dict[ServerConnection, None] = {}
        self._owed = 0
        self._settled: trio.Event | None = None
        self._handle: Callable[[ServerConnection, bytes], None]
        self._end_turn: Callable[[], None]
        self.may_send: Callable[[], bool] | None = None
        self.connections: dict[ServerConnection, None] = {}
        self.holding: dict[ServerConnection, None] = {}
        self.outbound = OutboundBudget(limits.unsent_bytes_max, limits.outgoing_bytes_max, limits.connections_max)
        self.acceptor = Acceptor(listener, self._poll, self.connections, limits.connections_max, self.drop, make)
        self._backlog: Backlog
        self._inbound = InboundBudget(limits.incoming_bytes_max, self.holding, self._turn_away)
        self.scheduler = Scheduler(self.connections)
        self._timeouts = Timeouts(limits, self.connections, self.outbound, self.drop)

    # -- the turn -----------------------------------------------------------------------------------------------------

    async def run(
        self, handle: Callable[[ServerConnection, bytes], None], end_turn: Callable[[], None], backlog: Backlog
    ) -> None:
        """Serves until cancelled.

        `handle` gets each payload; `end_turn` is called after each turn. While `backlog` is full, nothing is received.
        """
        self._handle, self._end_turn, self._backlog = handle, end_turn, backlog
        self.acceptor.open()
        self._poll.register(self._written.fd, _READ)
        backlog.tell(self._written.wake)
        self.scheduler.now, self.scheduler.wake = trio.lowlevel.current_clock().current_time, self._written.wake
        self._others = OtherTasks()
        trio.lowlevel.add_instrument(self._others)
        try:
            await self._serve(backlog)
        finally:
            trio.lowlevel.remove_instrument(self._others)
            backlog.tell(None)
            self._written.close()
            for connection in list(self.connections):
                self.drop(connection, after_answers=True)
            self._poll.close()
            self.acceptor.close()

    async def _serve(self, backlog: Backlog) -> None:
        descriptor = self._poll.fileno()
        while True:
            await self.scheduler.wait(descriptor)
            if backlog.full:
                backlog.tell(None)  # nobody looks at the descriptor meanwhile
                await self._timeouts.stall(backlog)
                backlog.tell(self._written.wake)
            ready = self._ready(0)
            lone = self._eager_one(ready)
            self.turn(ready)
            while lone is not None and self._stay_with(lone, backlog):
                await self._others.run()

    def _eager_one(self, ready: Ready) -> ServerConnection | None:
        """Returns the client that sends, if it is the only one, and sent its last request just before."""
        if len(ready) != 1:
            return None
        connection = self._by_fd.get(ready[0][0])
        return None if connection is None or trio.current_time() - connection.heard > _EAGER_S else connection

    def _stay_with(self, lone: ServerConnection, backlog: Backlog) -> bool:
        """Serves a single client until it pauses, anybody else sends or waits for an answer, or its answer is for a task to
        make. Returns True if it still sends, but other tasks must run before.
        """
        wait, scheduler, others = self._ready, self.scheduler, self._others
        until = scheduler.at + _STAY_S
        while self._owed == lone.owed and not scheduler.waiting and (not lone.owed or (backlog.writing and not backlog.full)):
            ready = wait(0.0 if others.wait else _WAIT_S)
            if not ready:
                return False
            self.turn(ready)
            if others.wait or scheduler.at >= until:
                return True
        return False

    def turn(self, events: Ready) -> None:
        """Serves all ready sockets.

        What a lone client is still sending joins the batch, instead of waiting until its first part is on the disk.
        """
        scheduler = self.scheduler
        now, alone = scheduler.begin(), len(events) == 1
        self._take(events, now, alone)
        if alone:
            for _ in range(_GATHERED_TURNS_MAX):
                if self._owed <= 1 or len(more := self._ready(0)) != 1:
                    break
                self._take(more, now, alone)
        if scheduler.waiting:
            scheduler.serve(self._receive, now)
        self._end_turn()
        if now >= self._inbound.due:
            self._inbound.enforce(now)
        if self._touched:
            self.flush()
        if scheduler.served_any:
            scheduler.end()

    def _take(self, events: Ready, now: float, alone: bool) -> None:
        scheduler, by_fd = self.scheduler, self._by_fd
        if self._newcomers:
            events = scheduler.in_order(events, by_fd, self._newcomers)
        for fd, ready in events:
            if fd not in by_fd:
                self._take_own(fd, now)
                continue
            connection = by_fd[fd]
            if not connection.greeted and scheduler.newcomers_wait():
                continue  # it is as ready in the next turn
            watched = connection.watched
            writable = watched & _WRITE and ready & ~_READ
            if writable:
                connection.writable = True
                self._touched[connection] = None
            wants = writable if connection.pending else (watched & _READ and ready & ~_WRITE)
            if not wants or connection.closed or connection.queued:
                continue
            quick = connection.busy < BUSY
            at_once = quick or (alone and not scheduler.waiting and connection.rests_until <= now)
            if at_once and scheduler.spent_s < QUICK_S_MAX:
                if quick and not connection.slow_answer_s:
                    scheduler.quick_at = now
                    scheduler.quick += 1
                self._receive(connection, now)
            else:
                scheduler.add(connection)
                self._touched[connection] = None

    def _take_own(self, fd: int, now: float) -> None:
        """Accepts connections, or takes what the writer thread has written."""
        if fd == self._written.fd:
            self._written.clear()
            self._backlog.collect()
        elif fd == self.acceptor.fd:  # else it was closed in this turn
            for newcomer in self.acceptor.accept(now):
                self.connections[newcomer] = self._newcomers[newcomer] = None
                self._by_fd[newcomer.fd] = newcomer
                self._watch(newcomer)
        self.scheduler.at = self.scheduler.clock()

    def _receive(self, connection: ServerConnection, now: float) -> None:
        """Handles received or pending payloads, until the connection reaches a limit."""
        scheduler = self.scheduler
        began, completes = scheduler.at, True
        at = began
        outbound = self.outbound
        requests_max, bytes_max = self._limits.requests_max, self._served_bytes_max
        if outbound.bytes >= outbound.bytes_max:
            requests_max, bytes_max = outbound.limits_now(requests_max, bytes_max)
        try:
            pending = connection.pending
            if not pending:
                received = connection.receive(now)
                if received is None:
                    self.drop(connection)
                    return
                if len(received) == 1 and not connection.held and connection.owed < requests_max:  # most have no other
                    self._handle(connection, received[0])
                    if connection.closed:
                        return
                    at = scheduler.clock()
                else:
                    connection.keep(received)
                    at = scheduler.clock()
                    completes = bool(received)
            end = began + scheduler.slice_s
            while pending and at < end:
                if connection.owed >= requests_max or connection.unsent_bytes >= bytes_max or connection.held:
                    break
                payload = pending.popleft()
                connection.pending_bytes -= len(payload) + OBJECT_BYTES
                self._handle(connection, payload)
                if connection.closed:
                    return
                at = scheduler.clock()
            took = at - began + connection.due_s
            connection.due_s = 0.0
            scheduler.spent_s += took
            if pending or took > TURN_S:
                scheduler.served(connection, took)
            else:
                connection.busy = 0
            if (
                took > NOTED_S or not completes
            ):  # thousands of tiny records of TLS, each of which is quick, need not be a request
                connection.took(took, at)
                if connection.taken_s > LEDGER_S_MAX:
                    scheduler.consider(connection)
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
            waits = pending or connection.held or connection.owed >= requests_max
            if waits or connection.watched != _READ:
                self._touched[connection] = None  # `flush` changes what epoll waits for
            if pending or connection.reader.buffered_bytes:
                self.holding[connection] = None
            elif connection in self.holding:
                del self.holding[connection]
        finally:
            scheduler.at = at

    # -- answers ------------------------------------------------------------------------------------------------------

    def owe(self, connection: ServerConnection, due_s: float = 0.0) -> None:
        """Counts a request that will be answered later, by `answer`, and will take about `due_s` of the loop's time."""
        connection.owed += 1
        self._owed += 1
        connection.due_s += due_s

    def answer(self, connection: ServerConnection, *frames: bytes) -> None:
        """Queues the answer to a request that `owe` counted."""
        connection.owed -= 1
        self._owed -= 1
        if not connection.closed:
            for frame in frames:
                connection.unsent.append(frame)
                connection.unsent_bytes += len(frame)
            self._touched[connection] = None

    def settle(self, connection: ServerConnection) -> None:
        """Stops counting a request; its connection may ask for more at the next `flush`."""
        connection.owed -= 1
        self._owed -= 1
        self._touched[connection] = None

    def send(self, connection: ServerConnection, frame: bytes) -> None:
        """Queues a frame, to be sent at the end of the turn or by the next `flush`."""
        if not connection.closed:
            connection.send(frame)
            self._touched[connection] = None

    def send_page(self, connection: ServerConnection, *frames: bytes) -> None:
        """Queues a page made on the event loop, and counts it at once: a turn may make many."""
        if not connection.closed:
            for frame in frames:
                connection.send(frame)
            self._touched[connection] = None
            self.outbound.count(connection)

    def flush(self) -> None:
        """Sends queued frames, if that is allowed now."""
        if self.may_send is not None and not self.may_send():
            return
        touched, self._touched = self._touched, {}
        newcomers, requests_max, outbound = self._newcomers, self._limits.requests_max, self.outbound
        for connection in touched:
            if connection.closed:
                continue
            if connection.unsent and not connection.flush():
                self.drop(connection)
                continue
            if connection.unsent_bytes != connection.counted_bytes:
                outbound.count(connection)
            if newcomers and connection.greeted:
                newcomers.pop(connection, None)
            waits = connection.unsent or connection.pending or connection.held or connection.queued
            if (
                waits
                or connection.watched != _READ
                or connection.owed >= requests_max
                or connection.room_wanted
                or outbound.bytes >= outbound.bytes_max
            ):
                self._watch(connection)
        if self._settled is not None:
            self._check_settled()

    def _watch(self, connection: ServerConnection) -> None:
        """Registers what the connection waits for; it is not read while it has too many requests or unread answers.

        Pending requests are handled in a turn like all others: the connection waits to become writable as soon as it may
        ask for more.
        """
        waits_for_server = connection.held or connection.queued
        requests_max, bytes_max = self.outbound.limits_now(self._limits.requests_max, self._limits.unsent_bytes_max)
        may_ask = connection.owed < requests_max and connection.unsent_bytes < bytes_max and not waits_for_server
        waits = bool(connection.pending)
        wanted = (_READ if may_ask and not waits else 0) | (_WRITE if connection.unsent or (may_ask and waits) else 0)
        if connection.room_wanted and self.outbound.has_room(connection):
            connection.room.unpark_all()
        if wanted == connection.watched:
            return
        if wanted & ~connection.watched & _READ:
            connection.restart_timeouts(trio.current_time())
        connection.watch(self._poll, wanted)

    def hold(self, connection: ServerConnection, why: int, held: bool = True) -> None:
        """Adds or removes a reason not to read from the connection. Takes effect at the next `flush`."""
        connection.held = connection.held | why if held else connection.held & ~why
        self._touched[connection] = None

    def check_invariants(self) -> None:
        """For tests, between two steps of tasks. Raises AssertionError with the connection that nothing will serve, or that is
        counted wrong. See also `OutboundBudget.check_invariants`.
        """
        self.scheduler.check_invariants(self.connections)
        strangers = self.holding.keys() - self.connections.keys()
        assert not strangers, f"they hold bytes, and are not connected: {[each.title for each in strangers]}"
        registered = registered_events(self._poll)
        owed = sum(each.owed for each in self.connections)
        assert owed <= self._owed, f"the connections are owed {owed} answers, {self._owed} are counted"
        for each in self.connections:
            each.check_invariants()
            assert not each.closed, f"{each.title} is closed, and among the open ones"
            most = self._limits.requests_max
            assert each.owed <= most, f"{each.title}: {each.owed} requests are taken and not answered, the limit is {most}"
            known = each in self.holding
            assert each.holds_bytes == known, f"{each.title} holds {each.held_bytes} bytes; the inbound budget knows: {known}"
            events = registered.get(each.fd, 0)
            assert each.watched == events, f"{each.title}: watched is {each.watched}, registered are {events}"
            assert self._by_fd.get(each.fd) is each, f"{each.title} is not found by its descriptor"
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
            connection.watch(self._poll, 0)
        self.connections.pop(connection, None)
        self._newcomers.pop(connection, None)
        if self._by_fd.get(connection.fd) is connection:
            del self._by_fd[connection.fd]
        self.holding.pop(connection, None)
        self.outbound.forget(connection)
        self.scheduler.spent_s += len(connection.bound) * _END_S
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


def registered_events(poll: select.epoll) -> dict[int, int]:
    """For tests. Returns what the kernel says is registered: the events of each descriptor."""
    with open(f"/proc/self/fdinfo/{poll.fileno()}") as lines:
        fields = [line.split() for line in lines if line.startswith("tfd:")]
    return {int(each[1]): int(each[3], 16) & (_READ | _WRITE) for each in fields}
