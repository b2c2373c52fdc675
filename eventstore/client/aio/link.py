"""One TCP connection of the async client: a non-blocking socket, written to by any task and read by one.

Writing is a plain function. The kernel nearly always takes all of the data at once, without a task switch; the rest waits in a
buffer for a background task, so a cancelled caller never leaves half a frame. The buffer is bounded by what the session allows
to be in flight.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import anyio

from eventstore.client.address import Address
from eventstore.client.aio.this_loop import this_loop
from eventstore.client.connection_errors import Attempt, ConnectTimeout, HelloTimeout, TlsFailed, tls_refused
from eventstore.client.options import ClientOptions
from eventstore.client.session.session import ClientSession
from eventstore.errors import EventStoreError
from eventstore.security.tls_socket import TlsSocket, reason_of

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_MAX: Final = 1024 * 1024


Start = Callable[[Callable[[], Coroutine[None, None, None]]], object]


class NetworkLink:
    """A connected socket. `start` starts a background task that ends when the link is closed."""

    def __init__(self, sock: socket.socket | TlsSocket, start: Start) -> None:
        self._socket = sock
        self._loop = this_loop()
        self._start = start
        self._backlog = bytearray()
        self._receive_bytes = _RECEIVE_BYTES
        self._more = False  # may have arrived, too: then a page takes one wake-up, not two

    def write(self, data: bytes) -> None:
        """Sends data, or buffers it. Errors of the connection surface in `read`."""
        if self._backlog:
            self._backlog += data
            return
        sent = self._send(data)
        if sent < len(data):
            self._backlog += memoryview(data)[sent:]
            self._start(self._drain)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.drop()
            return len(data)

    async def _drain(self) -> None:
        while self._backlog:
            try:
                await anyio.wait_writable(self._socket)
            except (OSError, ValueError, anyio.ClosedResourceError):
                return  # closed meanwhile; the session sends unanswered requests again on the next connection
            del self._backlog[: self._send(self._backlog)]

    async def read(self) -> bytes:
        """Waits for data and returns it; b"" at the end of the connection, for any reason."""
        try:
            while True:
                if not self._more:
                    await self._loop.wait_readable(self._socket)
                self._more = False
                try:
                    data = self._socket.recv(self._receive_bytes)
                except BlockingIOError:
                    continue
                full = len(data) == self._receive_bytes
                self._more = full and self._receive_bytes < _RECEIVE_BYTES_MAX
                self._receive_bytes = _RECEIVE_BYTES_MAX if full else _RECEIVE_BYTES
                return data
        except (OSError, ValueError, self._loop.closed):
            return b""

    def check_tls(self) -> None:
        """Raises TlsFailed if TLS has ended the connection."""
        if isinstance(self._socket, TlsSocket) and self._socket.failed is not None:
            raise TlsFailed(tls_refused(self._socket.failed))

    def drop(self) -> None:
        """Ends the connection; the reading task sees its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Closes a child's copy of the socket, without a byte sent, and without a word to the event loop of the parent."""
        self._backlog.clear()
        self._socket.close()

    def close(self) -> None:
        self._backlog.clear()
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()


async def open_link(
    address: Address, session: ClientSession[anyio.Event], options: ClientOptions, start: Start, timeout_s: float
) -> NetworkLink:
    """Returns a link over which the session's hello was answered.

    Raises:
        OSError, EventStoreError: it could not be; Unanswered: within the timeout. The session is disconnected.
    """
    link = None
    try:
        with anyio.fail_after(timeout_s):
            link = NetworkLink(await _secured(await open_socket(address), address, options), start)
            try:
                link.write(session.connected())
                while session.welcome is None:
                    data = await link.read()
                    if not data:
                        link.check_tls()
                        raise OSError("the connection was closed before the hello was answered")
                    session.receive(data)
            except BaseException:
                link.close()
                session.disconnected()
                raise
            return link
    except TimeoutError:
        raise HelloTimeout(timeout_s) if link is not None else ConnectTimeout(timeout_s) from None


async def first_to_answer(addresses: Sequence[Address], options: ClientOptions) -> tuple[Address | None, list[Attempt]]:
    """Connects to all of the addresses at once. Returns the one whose server answers a hello first, None if none does within
    the connect timeout; and those that had failed by then.
    """
    answered: list[Address] = []
    failed: list[Attempt] = []

    async def attempt(address: Address) -> None:
        session = ClientSession(options.name, anyio.Event, several=True, token=options.token)
        try:
            link = await open_link(address, session, options, tasks.start_soon, options.connect_timeout)
        except (OSError, EventStoreError) as error:
            failed.append((address, error))
        else:
            link.close()
            answered.append(address)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for each in addresses:
            tasks.start_soon(attempt, each)
    return answered[0] if answered else None, failed


async def _secured(sock: socket.socket, address: Address, options: ClientOptions) -> socket.socket | TlsSocket:
    """Returns the socket, over TLS if that is spoken at the address, whose server has then shown who it is. Raises OSError."""
    if not address.tls:
        return sock
    assert options.ssl_context is not None, "made by Options.completed"
    secured = TlsSocket(sock, options.ssl_context, server_side=False, host=address.host)
    try:
        while not secured.start():
            await anyio.wait_readable(sock)
            with contextlib.suppress(BlockingIOError):
                secured.feed()
    except ssl.SSLError as error:
        secured.close()
        raise TlsFailed(tls_refused(reason_of(error))) from None
    except BaseException:
        secured.close()
        raise
    return secured


async def open_socket(address: Address) -> socket.socket:
    """Returns a connected non-blocking socket; tries each address of the host in turn.

    Raises:
        OSError: no address could be reached.
    """
    problem: OSError = OSError(f"{address.host} has no address")
    for family, kind, protocol, _, where in await _found(address):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _connect(sock, where)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


async def _found(address: Address) -> Sequence[tuple[int, int, int, str, Any]]:
    """Returns what `getaddrinfo` does. A number needs no thread, which asyncio has none for once the main thread has ended."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)


async def _connect(sock: socket.socket, where: tuple[str, int]) -> None:
    with contextlib.suppress(BlockingIOError):
        sock.connect(where)
    await anyio.wait_writable(sock)
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
