"""One client: the bytes it sent, the answers it is owed, and since when it makes us wait."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import trio

from eventstore.protocol import FrameReader
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX

_RECEIVE_BYTES: Final = 256 * 1024
_FIRST_RECEIVE_BYTES: Final = LENGTH_BYTES + HELLO_BYTES_MAX
_JOINED_BYTES_MAX: Final = 256 * 1024  # copying more than that costs more than another call of the kernel
_LAST_RECEIVES: Final = 16


Read: TypeAlias = tuple[int, Callable[[], bytes], int]
"""A request id, what makes the frame of its answer (it may have to wait for the disk), and about how large that is."""


class Ending(Protocol):
    """Something that lives as long as its connection at most."""

    def cancel(self) -> None: ...


class Connection:
    """A socket without blocking calls.

    `pending`: payloads that have arrived and are not looked at before something else was answered. `owed` counts requests
    that were taken up and not answered yet. `reserved_bytes`: of pages that are being made for it. `counted_bytes`: what
    `Outgoing` knows of `unsent_bytes`. `greeted`: it has said hello; before, it may send only little. `held`: nothing more
    is taken from it until there is room for it (TCP holds back its sender). `writable`: the socket took everything the last
    time, or has room again.
    """

    __slots__ = (
        "_receive_bytes",
        "accepted",
        "blocked_since",
        "closed",
        "counted_bytes",
        "endings",
        "frame_since",
        "greeted",
        "heard",
        "held",
        "name",
        "owed",
        "pending",
        "reader",
        "reads",
        "reserved_bytes",
        "room",
        "socket",
        "unsent",
        "unsent_bytes",
        "watched",
        "workers",
        "writable",
    )

    def __init__(self, own_socket: socket.socket, now: float) -> None:
        own_socket.setblocking(False)
        own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = own_socket
        self.reader = FrameReader(HELLO_BYTES_MAX)
        self._receive_bytes = _FIRST_RECEIVE_BYTES
        self.name = ""
        self.greeted = False
        self.closed = False
        self.watched = 0
        self.pending: deque[bytes] = deque()
        self.owed = 0
        self.held = False
        self.accepted = self.heard = now
        self.frame_since: float | None = None
        self.blocked_since: float | None = None
        self.unsent: deque[bytes | memoryview] = deque()
        self.unsent_bytes = self.reserved_bytes = self.counted_bytes = 0
        self.writable = True
        self.room = trio.lowlevel.ParkingLot()
        self.reads: deque[Read] = deque()
        self.workers = 0
        self.endings: dict[int, Ending] = {}

    def receive(self, now: float) -> list[bytes] | None:
        """The payloads that have arrived; None when the client is gone.

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
            self.frame_since = now
        return payloads

    @property
    def held_bytes(self) -> int:
        """How much of what it sent is kept: a frame that is not whole yet, and what waits in `pending`."""
        return self.reader.buffered_bytes + (sum(map(len, self.pending)) if self.pending else 0)

    def pardon(self, now: float) -> None:
        """It was the server that did not read: the client's time counts anew."""
        self.heard = now
        if self.frame_since is not None:
            self.frame_since = now

    def send(self, frame: bytes) -> None:
        """Queues a frame; `flush` sends it."""
        self.unsent.append(frame)
        self.unsent_bytes += len(frame)

    def flush(self, now: float) -> bool:
        """Sends what the socket takes. False when the client is gone."""
        while self.unsent and self.writable:
            data = self._next_piece()
            try:
                sent = self.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return False
            self.unsent_bytes -= sent
            if sent < len(data):
                self.unsent.appendleft(memoryview(data)[sent:])
                self.writable = False
                if sent or self.blocked_since is None:
                    self.blocked_since = now
        if not self.unsent:
            self.blocked_since = None
        return True

    def _next_piece(self) -> bytes | memoryview:
        """What to send at once: frames joined as long as that is cheap."""
        unsent = self.unsent
        first = unsent.popleft()
        if not unsent or len(first) + len(unsent[0]) > _JOINED_BYTES_MAX:
            return first
        pieces, size = [first], len(first)
        while unsent and size + len(unsent[0]) <= _JOINED_BYTES_MAX:
            piece = unsent.popleft()
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.socket.close()
            self.pending.clear()
            self.unsent.clear()
            self.unsent_bytes = 0
            self.reads.clear()
            self.room.unpark_all()
            for ending in list(self.endings.values()):
                ending.cancel()
            self.endings.clear()

    def hang_up(self) -> None:
        """Closes so that the client can still read what it was sent: whatever it sent is read first, because closing a
        socket with unread bytes resets the connection.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            for _ in range(_LAST_RECEIVES):
                if not self.socket.recv(_RECEIVE_BYTES):
                    break
        self.close()
