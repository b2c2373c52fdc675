"""The gate: every socket of the server in one task.

A task per connection costs about 25 µs a request in wake-ups alone. Here a turn asks the operating system once which
sockets are ready, receives from each, hands all appends of the turn on as one batch, and sends each connection's answers
at once; trio waits on the selector's own descriptor, so that the gate is one task among others and stops, sleeps and
cancels like them.

Nothing a client does reaches further than its own connection: whatever goes wrong while it is served closes it, and is logged.
What a connection may make the server hold is bounded: requests that are not answered yet, answers that were not taken yet. At
the bound its requests wait where they are, first in `Connection.pending`, then in the kernel, then at the client.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

import trio

from eventstore.errors import EventStoreError
from eventstore.protocol import encode_error, encode_goodbye
from eventstore.server.connection import Connection
from eventstore.server.entrance import Entrance
from eventstore.server.gate_limits import GateLimits
from eventstore.server.housekeeping import Housekeeping
from eventstore.server.outgoing import Outgoing

_SERVED_BYTES_A_TURN: Final = 1024 * 1024  # of answers to one connection, before the others have their turn
_GATHERED_TURNS_MAX: Final = 3
_COMPLAINT_SECONDS: Final = 60.0  # so often at most is it logged that somebody sends rubbish
_HOUSEKEEPING_SECONDS: Final = 0.25
_EAGER_SECONDS: Final = 0.002  # who asks again within this time may do so again; in it is a write in place
_LINGER_QUIET_SECONDS: Final = 0.0002
_LINGER_SECONDS_MAX: Final = 0.001
_CAN_LINGER: Final = (os.cpu_count() or 1) > 1  # on a single processor it would be in its client's way
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_log = logging.getLogger(__name__)


class Room(Protocol):
    """Whoever takes what is received, and may have to be waited for: TCP then holds back the senders."""

    @property
    def full(self) -> bool: ...

    @property
    def writing(self) -> bool: ...

    async def wait_for_room(self) -> None: ...


class Gate:
    """Accepts, receives and sends. `handle` is given each payload; `end_turn` is called after the last of a turn.

    `holding`: the connections of whose requests something is kept: the others cost nothing to whoever bounds that.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: GateLimits,
        handle: Callable[[Connection, bytes], None],
        end_turn: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._handle = handle
        self._end_turn = end_turn
        self._selector = selectors.DefaultSelector()
        self._complaint_due = 0.0
        self._stalled = False
        self._served_bytes_max = min(limits.unsent_bytes_max, _SERVED_BYTES_A_TURN)
        self._touched: set[Connection] = set()
        self._settled: trio.Event | None = None
        self.outgoing = Outgoing(limits.unsent_bytes_max, limits.outgoing_bytes_max)
        self.connections: set[Connection] = set()
        self.holding: set[Connection] = set()
        self._entrance = Entrance(listener, self._selector, self.connections, limits.connections_max)
        self._housekeeping = Housekeeping(limits, self.connections, self.outgoing, self.drop)

    # -- the turn -----------------------------------------------------------------------------------------------------

    async def run(self, room: Room) -> None:
        """Serves until cancelled. Receives nothing while there is no `room` for what would arrive."""
        self._entrance.open()
        descriptor = self._selector.fileno()
        try:
            while True:
                await trio.lowlevel.wait_readable(descriptor)
                if room.full:
                    await self._stall(room)
                ready = self._selector.select(0)
                eager = _CAN_LINGER and _is_eager(ready)
                if self.turn(ready) == 1 and eager:
                    while self._linger(room):
                        await trio.lowlevel.checkpoint()  # the other tasks' turn
        finally:
            for connection in list(self.connections):
                self._forget(connection)
                connection.hang_up()
            self._selector.close()
            self._entrance.close()

    async def _stall(self, room: Room) -> None:
        """Waits for the disk, and does not hold it against the clients that they were not served meanwhile."""
        self._stalled = True
        try:
            await room.wait_for_room()
        finally:
            self._stalled = False
        now = trio.current_time()
        for connection in self.connections:
            connection.pardon(now)
            connection.accepted = now
            if connection.blocked_since is not None:
                connection.blocked_since = now

    def _linger(self, room: Room) -> bool:
        """Looks out for the next request of a lone client for a moment, instead of going to sleep and being woken.

        That takes longer than such a client needs for its next request. Not while an answer is owed, which another task may
        be waiting to give. Returns whether to go on: true when requests still come, but other tasks must have their turn.
        """
        started = quiet_since = time.perf_counter()
        owing = self._owes()
        while not room.writing and not owing:
            ready = self._selector.select(0)
            now = time.perf_counter()
            if ready:
                if self.turn(ready) != 1:
                    return False
                owing = self._owes()
                quiet_since = time.perf_counter()
            elif now - quiet_since > _LINGER_QUIET_SECONDS:
                return False
            if now - started > _LINGER_SECONDS_MAX:
                return True
        return False

    def _owes(self) -> bool:
        return any(connection.owed for connection in self.connections)

    def turn(self, events: list[tuple[selectors.SelectorKey, int]]) -> int:
        """Serves everything that is ready now; returns how many connections that were.

        What a lone client is still sending joins the batch, instead of waiting until its first part is on the disk.
        """
        now = trio.current_time()
        self._take(events, now)
        more = events
        for _ in range(_GATHERED_TURNS_MAX):
            if len(more) != 1:
                break
            more = self._selector.select(0)
            self._take(more, now)
        self._end_turn()
        self.flush()
        return max(len(events), len(more))

    def _take(self, events: list[tuple[selectors.SelectorKey, int]], now: float) -> None:
        for key, ready in events:
            connection = key.data
            if connection is None:
                for newcomer in self._entrance.accept(now):
                    self.connections.add(newcomer)
                    self._watch(newcomer, now)
                continue
            if ready & _READ and not connection.closed:
                self._receive(connection, now)
            if ready & _WRITE and not connection.closed:
                connection.writable = True
                self._touched.add(connection)
                if connection.pending:
                    self._receive(connection, now)

    def _receive(self, connection: Connection, now: float) -> None:
        """Takes up what has arrived, or what had to wait, as far as the connection may ask for more."""
        try:
            payloads = connection.pending or connection.receive(now)
            if payloads is None:
                self.drop(connection)
                return
            requests_max, bytes_max, handle = self._limits.requests_max, self._served_bytes_max, self._handle
            for taken, payload in enumerate(payloads):
                if connection.owed >= requests_max or connection.unsent_bytes >= bytes_max or connection.held:
                    connection.pending = deque(islice(payloads, taken, None))
                    break
                handle(connection, payload)
                if connection.closed:
                    return
            else:
                connection.pending.clear()
                if connection.reader.failed is not None:
                    raise connection.reader.failed
        except EventStoreError as error:  # the framing is broken: say so, and hang up
            if now >= self._complaint_due:
                self._complaint_due = now + _COMPLAINT_SECONDS
                _log.warning("closing a connection (%s): %s", connection.name or "no hello", error.message)
            connection.send(encode_error(0, error))
            connection.flush(now)
            self._forget(connection)
            connection.hang_up()
            self._tell_if_settled()
        except Exception:
            _log.exception("serving a client failed; its connection is closed")
            self.drop(connection)
        else:
            self._touched.add(connection)  # `flush` tells the selector, when what can be sent was sent
            if connection.held_bytes:
                self.holding.add(connection)
            else:
                self.holding.discard(connection)

    def send(self, connection: Connection, frame: bytes) -> None:
        """Queues a frame; it goes out at the end of the turn, or at the next `flush`."""
        if not connection.closed:
            connection.send(frame)
            self._touched.add(connection)

    def flush(self) -> None:
        """Sends what was queued."""
        now = trio.current_time()
        touched, self._touched = self._touched, set()
        for connection in touched:
            if connection.closed:
                continue
            if connection.flush(now):
                if connection.unsent_bytes != connection.counted_bytes:
                    self.outgoing.count(connection)
                self._watch(connection, now)
            else:
                self.drop(connection)
        self._tell_if_settled()

    def _watch(self, connection: Connection, now: float) -> None:
        """Tells the selector what this connection waits for: it is not read from while it owes us too much reading.

        Requests that had to wait are taken up in a turn of their own, like everything else: as soon as it may ask for more,
        the connection waits to become writable.
        """
        has_room = connection.unsent_bytes < self._limits.unsent_bytes_max
        may_ask = connection.owed < self._limits.requests_max and has_room and not connection.held
        waits = bool(connection.pending)
        wanted = (_READ if may_ask and not waits else 0) | (_WRITE if connection.unsent or (may_ask and waits) else 0)
        if has_room and connection.room:
            connection.room.unpark_all()
        if wanted == connection.watched:
            return
        if wanted & ~connection.watched & _READ:
            connection.pardon(now)
        if not connection.watched:
            self._selector.register(connection.socket, wanted, connection)
        elif wanted:
            self._selector.modify(connection.socket, wanted, connection)
        else:
            self._selector.unregister(connection.socket)
        connection.watched = wanted

    def look_again(self, connection: Connection) -> None:
        """It may ask for more now, or no longer (`owed`, `held`): the next `flush` sees to that."""
        self._touched.add(connection)

    def drop(self, connection: Connection) -> None:
        """Closes the connection. What it has appended is stored all the same."""
        if connection.closed:
            return
        self._forget(connection)
        connection.close()
        self._tell_if_settled()

    def _forget(self, connection: Connection) -> None:
        if connection.watched:
            self._selector.unregister(connection.socket)
            connection.watched = 0
        self.connections.discard(connection)
        self.holding.discard(connection)
        self.outgoing.forget(connection)

    # -- coming and going ---------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        """How many connections there have been."""
        return self._entrance.accepted

    @property
    def turned_away(self) -> int:
        """How many more would have liked to be."""
        return self._entrance.turned_away

    async def keep_house(self) -> None:
        """Closes connections that take too long, and accepts again after descriptors ran out."""
        while True:
            await trio.sleep(_HOUSEKEEPING_SECONDS)
            if not self._stalled:
                self._housekeeping.look(trio.current_time())
            self._entrance.open()

    def say_goodbye(self) -> None:
        """Accepts nobody any more, and tells the others that the server is stopping."""
        self._entrance.leave()
        goodbye = encode_goodbye()
        for connection in list(self.connections):
            self.send(connection, goodbye)
        self.flush()

    async def wait_until_settled(self) -> None:
        """Returns when every client has been answered and has taken its answers."""
        self._settled = trio.Event()
        self._tell_if_settled()
        await self._settled.wait()

    def _tell_if_settled(self) -> None:
        owing = (client.owed or client.unsent or client.pending for client in self.connections)
        if self._settled is not None and not any(owing):
            self._settled.set()


def _is_eager(ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
    """Whether only one client asks, and has asked just before: for one that asks now and then nobody need look out."""
    connection: Connection | None = ready[0][0].data if len(ready) == 1 else None
    return connection is not None and trio.current_time() - connection.heard < _EAGER_SECONDS
