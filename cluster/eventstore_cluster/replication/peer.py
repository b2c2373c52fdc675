"""Connections between replicas, which send at once what the kernel takes, and the rest later."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import trio

from eventstore.errors import ProtocolError
from eventstore.protocol.frames import FrameReader
from eventstore.security.tls_socket import TlsSocket, reason_of
from eventstore.server.access.security import Security
from eventstore_cluster.replication.peer_frames import (
    FRAME_BYTES_MAX,
    VERSION_MIN,
    PeerDecoder,
    PeerFrame,
    PeerHello,
    encode_peer_frame,
)

CONNECT_S: Final = 2.0
HELLO_S: Final = 2.0
_UNGREETED: Final = (
    "the connection was closed without a hello: what answers is not of this shard, or refuses this replica; its log says why"
)
_RECEIVE_BYTES: Final = 1024 * 1024


class Peer:
    """A connection to another replica, whose first frame has come.

    Attributes:
        hello: the first frame.
    """

    def __init__(self, number: int, wire: Wire, hello: PeerHello, waiting: Sequence[PeerFrame]) -> None:
        """`waiting`: frames that came with the first frame."""
        self.number, self.hello = number, hello
        self._wire, self._waiting = wire, waiting
        self._unsent: deque[memoryview] = deque()
        self._more = trio.Event()
        self.closed = False

    def send(self, frame: PeerFrame) -> None:
        """Sends the frame, some of it perhaps later. Does nothing once the connection is closed."""
        if self.closed:
            return
        data, sent = encode_peer_frame(frame), 0
        if not self._unsent:
            try:
                sent = self._wire.socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                self.close()
                return
        if sent < len(data):
            self._unsent.append(memoryview(data)[sent:])
            self._more.set()

    async def flush_later(self) -> None:
        """Sends what `send` could not; until the connection is closed."""
        while not self.closed:
            await self._more.wait()
            self._more = trio.Event()
            while self._unsent and not self.closed:
                try:
                    await trio.lowlevel.wait_writable(self._wire.socket)
                    sent = self._wire.socket.send(self._unsent[0])
                except BlockingIOError:
                    continue
                except (OSError, trio.ClosedResourceError):
                    self.close()
                    return
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()

    async def frames(self) -> AsyncIterator[PeerFrame]:
        """Yields what the other side sends; ends with the connection. Raises ProtocolError."""
        for frame in self._waiting:
            yield frame
        while not self.closed and not self._wire.ended:
            for frame in await self._wire.receive():
                yield frame

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._more.set()
            trio.lowlevel.notify_closing(self._wire.socket)
            with contextlib.suppress(OSError):
                self._wire.socket.close()


class Wire:
    """A socket that does not block, and the frames in what it receives."""

    def __init__(self, own: socket.socket | TlsSocket, decoder: PeerDecoder) -> None:
        self.socket = own
        own.setblocking(False)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ended = False
        self._decoder = decoder
        self._reader = FrameReader(FRAME_BYTES_MAX)

    async def receive(self) -> list[PeerFrame]:
        """Returns the frames that came next; `ended` is then set if there will be no more. Raises ProtocolError."""
        try:
            await trio.lowlevel.wait_readable(self.socket)
            data = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except (OSError, trio.ClosedResourceError):
            data = b""
        if not data:
            self.ended = True
            return []
        return self.frames_in(data)

    def frames_in(self, data: bytes) -> list[PeerFrame]:
        """Returns the frames that are complete with these bytes, which came next. Raises ProtocolError."""
        return [self._decoder.decode(payload) for payload in self._reader.feed(data)]


class Peers:
    """Makes connections to other replicas of the shard, with `hello` as what this replica says of itself.

    With TLS both sides show a certificate first. The side that connects says hello; the other side answers once it has heard
    its cluster and shard, with the older one of both versions. A program that knows only an older one ends the connection
    then: the side that connects comes again, and says that version. So nodes are upgraded one by one.
    """

    def __init__(self, hello: PeerHello, security: Security) -> None:
        self._hello, self._security = hello, security
        self._decoder = PeerDecoder()
        self._numbers = 0

    async def connect(self, host: str, port: int) -> Peer:
        """Raises OSError, ProtocolError."""
        peer = await self._connect(host, port, self._hello)
        if peer.hello.version == self._hello.version:
            return peer
        peer.close()
        return await self._connect(host, port, replace(self._hello, version=peer.hello.version))

    async def _connect(self, host: str, port: int, hello: PeerHello) -> Peer:
        """Returns the connection, also to an older program, which ends it if the hello is of a version that it does not know.

        Raises:
            OSError, ProtocolError
        """
        try:
            with trio.fail_after(CONNECT_S):
                stream = await trio.open_tcp_stream(host, port)
        except trio.TooSlowError:
            raise TimeoutError(f"no answer within {CONNECT_S:g} s") from None
        except UnicodeError:
            raise OSError(f"{host} is not the name of a machine") from None
        tls = self._security.tls
        own = _taken(stream.socket)
        secured = own if tls is None else TlsSocket(own, tls.own_context, server_side=False, host=host)
        return await self._greet(secured, hello)

    async def accept(self, connected: trio.socket.SocketType) -> Peer:
        """Returns the connection that another replica has opened.

        Raises:
            OSError: the connection ended, or nothing came.
            ProtocolError: the other side is not a replica of this shard.
        """
        tls = self._security.tls
        own = _taken(connected)
        if tls is None:
            return await self._greet(own)
        secured = TlsSocket(own, tls.peer_context, server_side=True)
        try:
            return await self._greet(secured)
        except OSError as error:
            if not secured.greeted:
                tls.failed_handshakes.note("another replica's address", str(error))
            raise

    async def _greet(self, own: socket.socket | TlsSocket, hello: PeerHello | None = None) -> Peer:
        """Exchanges hellos on a new connection. `hello`: what this side says first; None: the other side has opened it.

        Raises:
            OSError: the connection ended, or nothing came.
            ProtocolError: the other side is not a replica of this shard.
        """
        wire = Wire(own, self._decoder)
        frames: list[PeerFrame] = []
        try:
            if isinstance(own, TlsSocket):
                early = await _shake_hands(own)
                self._security.check_peer(own)
                frames = wire.frames_in(early)
            if hello is not None:
                wire.socket.send(encode_peer_frame(hello))
            with trio.fail_after(HELLO_S):
                while not (frames or wire.ended):
                    frames = await wire.receive()
            if not frames:
                raise ConnectionResetError(_UNGREETED if hello is not None else "the connection was closed before the hello")
            first = self._checked(frames[0])
            if hello is None:
                wire.socket.send(encode_peer_frame(self._answer(first)))
            self._check_version(first)
            self._numbers += 1
            return Peer(self._numbers, wire, first, frames[1:])
        except trio.TooSlowError:
            wire.socket.close()
            raise TimeoutError(f"no hello within {HELLO_S:g} s") from None
        except BaseException:
            wire.socket.close()
            raise

    def _checked(self, first: PeerFrame) -> PeerHello:
        """Returns the hello of the other side. Raises ProtocolError: the frame is no hello, or a hello of another cluster or
        shard.
        """
        own = self._hello
        if not isinstance(first, PeerHello) or (first.cluster, first.shard) != (own.cluster, own.shard):
            raise ProtocolError(f"another replica was expected, and says {first!r}", field="hello")
        return first

    def _answer(self, first: PeerHello) -> PeerHello:
        known = VERSION_MIN <= first.version < self._hello.version
        return replace(self._hello, version=first.version) if known else self._hello

    def _check_version(self, first: PeerHello) -> None:
        """Raises ProtocolError."""
        own = self._hello
        if not VERSION_MIN <= first.version <= own.version:
            raise ProtocolError(
                f"the replica on {first.node} speaks version {first.version}, this one {VERSION_MIN} to {own.version}; install "
                f"the same program",
                field="version",
                value=first.version,
                limit=own.version,
            )


async def _shake_hands(secured: TlsSocket) -> bytes:
    """Returns what came with the end of the handshake: a hello, if the kernel had both by then.

    Raises:
        OSError: the other side has no certificate of the CA, is gone, or does not speak TLS.
    """
    early = b""
    with trio.move_on_after(HELLO_S) as scope:
        try:
            while not secured.start():
                await trio.lowlevel.wait_readable(secured)
                with contextlib.suppress(BlockingIOError):
                    early = secured.recv(_RECEIVE_BYTES)
                    if not (early or secured.greeted):
                        raise ConnectionResetError("the connection was closed during the handshake of TLS")
        except ssl.SSLError as error:
            raise OSError(f"the handshake of TLS failed: {reason_of(error)}") from None
    if scope.cancelled_caught:
        raise TimeoutError(f"no handshake within {HELLO_S:g} s")
    return early


def _taken(connected: trio.socket.SocketType) -> socket.socket:
    """Returns the socket inside one of trio's."""
    return socket.socket(fileno=connected.detach())
