"""One client: the bytes it sent, the answers it is owed, and since when it makes us wait."""

from __future__ import annotations

import socket
from collections import deque
from typing import Final, Protocol

from eventstore.protocol import FrameReader

_RECEIVE_BYTES: Final = 256 * 1024


class Ending(Protocol):
    """Something that lives as long as its connection at most."""

    def cancel(self) -> None: ...


class Connection:
    """A socket without blocking calls. `owed` counts requests that were received and not answered yet."""

    __slots__ = (
        "blocked_since",
        "closed",
        "endings",
        "frame_since",
        "greeted",
        "heard",
        "name",
        "owed",
        "reader",
        "reading",
        "socket",
        "unsent",
        "unsent_bytes",
        "watched",
    )

    def __init__(self, own_socket: socket.socket, now: float) -> None:
        own_socket.setblocking(False)
        own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = own_socket
        self.reader = FrameReader()
        self.name = ""
        self.greeted = False
        self.closed = False
        self.reading = True
        self.watched = 0
        self.owed = 0
        self.heard = now
        self.frame_since: float | None = None
        self.blocked_since: float | None = None
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.endings: dict[int, Ending] = {}

    def receive(self, now: float) -> list[bytes] | None:
        """The payloads that have arrived; None when the client is gone.

        Raises:
            ProtocolError: the framing is broken.
        """
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
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

    def send(self, frame: bytes) -> None:
        """Queues a frame; `flush` sends it."""
        self.unsent.append(frame)
        self.unsent_bytes += len(frame)

    def flush(self, now: float) -> bool:
        """Sends what the socket takes. False when the client is gone."""
        unsent = self.unsent
        while unsent:
            data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
            try:
                sent = self.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return False
            self.unsent_bytes -= sent
            unsent.clear()
            if sent < len(data):
                unsent.append(data[sent:])
                if sent or self.blocked_since is None:
                    self.blocked_since = now
                return True
        self.blocked_since = None
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.socket.close()
            self.unsent.clear()
            self.unsent_bytes = 0
            for ending in list(self.endings.values()):
                ending.cancel()
            self.endings.clear()
