"""One client's socket: received frames, unsent answers, and the times its timeouts are measured from."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import trio

from eventstore.errors import InvalidArgument
from eventstore.protocol import FrameReader
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX
from eventstore.server.net.peers import network_of

HELD_BY_MESSAGES: Final = 1
HELD_BY_COMMANDS: Final = 2
"""Why a connection is not read, in `ServerConnection.held`: the sum of the reasons."""
BOUND_MAX: Final = 64  # requests in `ServerConnection.bound`: subscriptions, pulls and MAPs that wait
LIGHT_MAX: Final = 1_000  # besides these: waits for projections, which cost an object each
USES_MAX: Final = 16
BUSY: Final = 2  # `ServerConnection.busy` of one that waits for its slice: one long slice may be the fault of the machine
SHARE_MIN: Final = 0.25  # of the server's time, that each has at least
_RECEIVE_BYTES: Final = 256 * 1024
_FIRST_RECEIVE_BYTES: Final = LENGTH_BYTES + HELLO_BYTES_MAX
_JOINED_BYTES_MAX: Final = 256 * 1024  # copying more than that costs more than another call of the kernel
_LAST_RECEIVES: Final = 16
OBJECT_BYTES: Final = 48  # besides its payload; a request of 3 bytes would else seem to be small


@dataclass(frozen=True, slots=True)
class GateLimits:
    """What one connection, and all connections together, may take from the server."""

    connections_max: int
    requests_max: int
    unsent_bytes_max: int
    incoming_bytes_max: int
    outgoing_bytes_max: int
    hello_timeout_s: float
    frame_timeout_s: float
    idle_timeout_s: float
    slow_client_timeout_s: float


class ConnectionBound(Protocol):
    """A request that ends with its connection at the latest, such as a subscription. `light`: it costs only an object."""

    light: ClassVar[bool]

    @property
    def use(self) -> str | None:
        """What it is for, for people; None: nothing worth saying."""

    def cancel(self) -> None: ...


class ServerConnection:
    """A non-blocking socket.

    - `pending`: payloads that wait until earlier requests are answered. `pending_bytes`: of these, as memory holds them.
    - `peer`: whose it is: the connections of a peer share what a turn has for it. An identity, or the address.
    - `busy`: 0 to 2, `BUSY` if it has sent more than a slice, or twice took a turn. `queued`: a slice of it waits.
    - `taken_s`: its ledger: what it took of the server's time up to `taken_at`. `due_s`: what its requests of this turn will.
    - `rests_until`: nothing is done for it before, as it took more than its share. `slowed_at`: when that was found last.
    - `slow_answer_s`: what its last answer took that a task made; 0 if that was quick, None before the first.
    - `owed`: requests that were taken and not answered yet; only the gate changes it.
    - `unsent_bytes`: of frames whose last byte was not sent yet, as memory holds them. `sent_of_first`: sent of the first one.
    - `reserved_bytes`: of pages that are being made. `counted_bytes`: the part of `unsent_bytes` the outbound budget counted.
    - `greeted`: HELLO was received; before that, frames must be small. `in_parts`: it takes answers in parts. `places`: its
      pages of the log say the identity of the event that they end at. `writable`: it took everything the last time, or has
      room again.
    - `durability`: of what is committed, for its answers; None: they do not say. `doing`: its last kind of request, or a text.
    - `uses`: what it has sent to and consumed from, the first `USES_MAX`, for people. `since_us`: when it was accepted.
    - `room`: pages wait there for room to be sent, `room_wanted` of them.
    - `charge`: counts a request against the limits of its identity; None: there are none, and then nothing is called.
    - `request_bytes`: of the request that is being handled. `waiting_bytes`: of its commands that are not answered.
    - `held`: why nothing is read until there is room; TCP then holds back the sender.
    - `bound`: requests to cancel when the connection closes, by request id.
    """

    __slots__ = (
        "_receive_bytes",
        "accepted",
        "blocked_since",
        "bound",
        "busy",
        "charge",
        "closed",
        "counted_bytes",
        "doing",
        "due_s",
        "durability",
        "fd",
        "frame_began",
        "frame_since",
        "greeted",
        "heard",
        "held",
        "host",
        "in_parts",
        "light",
        "name",
        "owed",
        "peer",
        "pending",
        "pending_bytes",
        "places",
        "port",
        "queued",
        "reader",
        "request_bytes",
        "reserved_bytes",
        "rests_until",
        "room",
        "room_wanted",
        "sent_of_first",
        "since_us",
        "slow_answer_s",
        "slowed_at",
        "socket",
        "taken_at",
        "taken_s",
        "unsent",
        "unsent_bytes",
        "uses",
        "waiting_bytes",
        "watched",
        "writable",
    )

    def __init__(self, own_socket: socket.socket, address: tuple[Any, ...], now: float) -> None:
        """`address`: of the peer, as `accept` returns it."""
        own_socket.setblocking(False)
        own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.fd = own_socket, own_socket.fileno()
        self.host, self.port = address[:2]
        self.peer = network_of(self.host)
        self.reader = FrameReader(HELLO_BYTES_MAX)
        self._receive_bytes = _FIRST_RECEIVE_BYTES
        self.name = ""
        self.doing: type | str = "no request"
        self.greeted, self.in_parts, self.places, self.closed, self.writable = False, False, False, False, True
        self.durability: Callable[[], int | None] | None = None
        self.charge: Callable[[ServerConnection], None] | None = None
        self.pending: deque[bytes] = deque()
        self.taken_s = self.taken_at = self.due_s = 0.0
        self.queued, self.slowed_at, self.rests_until = False, float("-inf"), float("-inf")
        self.held = self.busy = self.pending_bytes = 0
        self.watched = self.owed = self.request_bytes = self.waiting_bytes = 0
        self.accepted = self.heard = now
        self.frame_began = now  # of the incomplete frame, if there is one
        self.frame_since: float | None = None  # the same, without the time that the server made it wait
        self.blocked_since: float | None = None
        self.slow_answer_s: float | None = None
        self.unsent: deque[bytes | memoryview] = deque()
        self.unsent_bytes = self.sent_of_first = self.reserved_bytes = self.counted_bytes = 0
        self.room = trio.lowlevel.ParkingLot()
        self.room_wanted = 0
        self.bound: dict[int, ConnectionBound] = {}
        self.light = 0  # of these
        self.uses: set[str] = set()
        self.since_us = time.time_ns() // 1_000

    def receive(self, now: float) -> list[bytes] | None:
        """Returns the payloads that have arrived; None if the client is gone.

        Raises:
            ProtocolError: the framing is broken.
        """
        if self.greeted and self._receive_bytes != _RECEIVE_BYTES:
            self._receive_bytes = _RECEIVE_BYTES
            self.reader.allow(FRAME_BYTES_MAX)
        try:
            data = self.socket.recv(self._receive_bytes)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data:
            return None
        self.heard = now
        payloads = self.reader.feed(data)
        if not self.reader.buffered_bytes:
            self.frame_since = None
        elif payloads or self.frame_since is None:
            self.frame_began = self.frame_since = now
        return payloads

    def keep(self, payloads: list[bytes]) -> None:
        """Adds to `pending`."""
        self.pending += payloads
        self.pending_bytes += sum(map(len, payloads)) + OBJECT_BYTES * len(payloads)

    def took(self, seconds: float, now: float) -> None:
        """Adds to what it took of the server's time, which drains by the share that each has at least."""
        left = self.taken_s - (now - self.taken_at) * SHARE_MIN
        self.taken_s, self.taken_at = (left if left > 0.0 else 0.0) + seconds, now

    def note_use(self, use: str) -> None:
        """Notes what the client does."""
        if use not in self.uses and len(self.uses) < USES_MAX:
            self.uses.add(use)

    def can_bind(self, request_id: int, *, light: bool = False) -> bool:
        """Whether `bind` takes a request with this id."""
        has_room = self.light < LIGHT_MAX if light else len(self.bound) - self.light < BOUND_MAX
        return has_room and request_id not in self.bound

    def bind(self, request_id: int, request: ConnectionBound) -> None:
        """Keeps a request until it ends or the connection closes.

        Raises:
            InvalidArgument: one with this id is kept already, or as many as there may be.
        """
        if not self.can_bind(request_id, light=request.light):
            most = LIGHT_MAX if request.light else BOUND_MAX
            raise InvalidArgument(
                f"request id {request_id} waits already, or {most:,} requests of this connection wait, the limit",
                field="request id",
                limit=most,
                value=request_id,
            )
        self.bound[request_id] = request
        self.light += request.light

    def release(self, request_id: int) -> ConnectionBound | None:
        """Forgets a request, and returns it if it was kept."""
        request = self.bound.pop(request_id, None)
        if request is not None:
            self.light -= request.light
        return request

    def unbind(self, request_id: int, request: ConnectionBound) -> bool:
        """Forgets a request that has ended; False if UNSUBSCRIBE or the end of the connection did so before."""
        if self.bound.get(request_id) is not request:
            return False
        del self.bound[request_id]
        self.light -= request.light
        return True

    @property
    def title(self) -> str:
        """Its name and address, for the log."""
        return f"{self.name or 'no hello'}, {self.host}:{self.port}"

    @property
    def is_read(self) -> bool:
        """Whether its requests are received now."""
        return bool(self.watched & select.EPOLLIN)

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, subscription or answer under way."""
        return not (self.owed or self.bound or self.holds_bytes or self.unsent or self.queued)

    @property
    def holds_bytes(self) -> bool:
        """Whether it holds any bytes of its requests."""
        return bool(self.pending) or self.reader.buffered_bytes > 0

    @property
    def held_bytes(self) -> int:
        """The bytes held of its requests: an incomplete frame and the payloads in `pending`, as memory holds them."""
        return self.reader.buffered_bytes + self.pending_bytes

    def restart_timeouts(self, now: float) -> None:
        """Restarts the timeouts of a client that had to wait because the server did not read."""
        self.heard = now
        if self.frame_since is not None:
            self.frame_since = now

    def restart_all_timeouts(self, now: float) -> None:
        """Restarts every timeout, after the server did not serve for a while."""
        self.restart_timeouts(now)
        self.accepted = now
        if self.blocked_since is not None:
            self.blocked_since = now

    def watch(self, poll: select.epoll, wanted: int) -> None:
        """Registers the connection for the wanted events; for none, removes it."""
        if not self.watched:
            poll.register(self.socket, wanted)
        elif wanted:
            poll.modify(self.socket, wanted)
        else:
            poll.unregister(self.socket)
        self.watched = wanted

    async def wait_for_room(self) -> None:
        """Returns when answers were sent, or the connection is closed."""
        self.room_wanted += 1
        try:
            await self.room.park()
        finally:
            self.room_wanted -= 1

    def send(self, frame: bytes) -> None:
        """Queues a frame; `flush` sends it."""
        self.unsent.append(frame)
        self.unsent_bytes += len(frame)

    def flush(self) -> bool:
        """Sends as much as the socket takes. Returns False if the client is gone."""
        unsent = self.unsent
        while unsent and self.writable:
            data = unsent.popleft()
            if unsent:
                data = self._with_next(data)
            try:
                sent = self.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return False
            if sent < len(data):
                self._keep_rest(data, sent)
                self.writable = False
                if sent or self.blocked_since is None:
                    self.blocked_since = trio.current_time()
            else:
                self.unsent_bytes -= sent + self.sent_of_first
                self.sent_of_first = 0
        if not unsent:
            self.blocked_since = None
        return True

    def _keep_rest(self, data: bytes | memoryview, sent: int) -> None:
        """Keeps what is left of a frame. It is copied whenever half was sent: a view would keep all of it in memory."""
        rest: bytes | memoryview = memoryview(data)[sent:]
        self.sent_of_first += sent
        if self.sent_of_first >= len(rest):
            rest = bytes(rest)
            self._forget_sent()
        self.unsent.appendleft(rest)

    def _forget_sent(self) -> None:
        self.unsent_bytes -= self.sent_of_first
        self.sent_of_first = 0

    def _with_next(self, first: bytes | memoryview) -> bytes | memoryview:
        """Joins the next frames to the first one, as long as that is cheap."""
        unsent = self.unsent
        if len(first) + len(unsent[0]) > _JOINED_BYTES_MAX:
            return first
        pieces, size = [first], len(first)
        while unsent and size + len(unsent[0]) <= _JOINED_BYTES_MAX:
            piece = unsent.popleft()
            pieces.append(piece)
            size += len(piece)
        self._forget_sent()
        return b"".join(pieces)

    def check_invariants(self) -> None:
        """For tests, between two steps of tasks. Raises AssertionError unless its counts are those of what it holds."""
        payloads = sum(map(len, self.pending)) + OBJECT_BYTES * len(self.pending)
        assert self.pending_bytes == payloads, f"{self.title}: {self.pending_bytes} bytes are counted, {payloads} are pending"
        unsent = sum(map(len, self.unsent)) + self.sent_of_first
        assert self.unsent_bytes == unsent, f"{self.title}: {self.unsent_bytes} bytes are counted, its frames have {unsent}"
        counts = self.owed, self.waiting_bytes, self.reserved_bytes, self.counted_bytes, self.sent_of_first
        assert min(counts) >= 0, f"{self.title}: owed, waiting, reserved, counted and sent of the first frame are {counts}"
        light = sum(each.light for each in self.bound.values())
        assert self.light == light <= LIGHT_MAX, f"{self.title}: {self.light} light requests are counted, {light} are bound"
        assert len(self.bound) - light <= BOUND_MAX, f"{self.title}: {len(self.bound)} requests are bound to it"
        if self.closed:
            left = len(self.pending), len(self.unsent), len(self.bound)
            assert not any(left), f"{self.title} is closed, and has payloads, frames and requests: {left}"
            return
        assert self.blocked_since is None or self.unsent, f"{self.title} is blocked, and has nothing to send"
        assert self.writable or self.unsent, f"{self.title} waits to become writable, and has nothing to send"
        if self.reader.failed is None:
            begun, buffered = self.frame_since is not None, self.reader.buffered_bytes
            assert begun == (buffered > 0), f"{self.title}: {buffered} bytes of a frame, which began at {self.frame_since}"

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.socket.close()
            self.pending.clear()
            self.pending_bytes = 0
            self.unsent.clear()
            self.unsent_bytes = self.sent_of_first = 0
            self.room.unpark_all()
            for request in list(self.bound.values()):
                request.cancel()
            self.bound.clear()
            self.light = 0

    def hang_up(self) -> None:
        """Closes the connection so that the client can still read its answers.

        Reads what the client sent first, because closing a socket with unread bytes resets the connection.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            for _ in range(_LAST_RECEIVES):
                if not self.socket.recv(_RECEIVE_BYTES):
                    break
        self.close()
