"""The blocking client's socket, which the calling thread sends to and receives from.

While the kernel takes no more data to send, arriving data is received: two sides that only write would block each other
forever.

The handler of a signal may raise between any two steps, TimeoutError for one, to limit a call: `raised_by_handler`
distinguishes that from an error of the connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any, Final, Self
from weakref import ref

from eventstore.client.address import Address
from eventstore.client.blocking.refused_eventlet import refuse_eventlet
from eventstore.client.connection_errors import Attempt, ConnectTimeout, HelloTimeout, TlsFailed, Unanswered, tls_refused
from eventstore.client.limit import active, check_time, current, shortened
from eventstore.client.options import ClientOptions
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.errors import TimedOut
from eventstore.security.tls_socket import TlsSocket, reason_of

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_MAX: Final = 1024 * 1024
_SPIN_SECONDS: Final = 0.0005  # an append, with its sync, is answered within that
_PREEMPTED_SECONDS: Final = 0.00005
_SPINS_SKIPPED: Final = 32
_CAN_SPIN: Final = (os.cpu_count() or 1) > 1
_receiving: Final[set[BlockingLink]] = set()  # of this process; adding and discarding are safe on any thread


class PeerSilent(Unanswered):
    """The peer neither sent nor took anything for the whole timeout."""


class EndOfStream(OSError):
    """The peer closed the connection."""


class _Closing(ref[object]):
    """Closes a socket when its owner is dropped. In C alone: the exception of a signal handler would be lost in a `__del__`."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # an owner has several, one after the other
    close: Callable[[], None]

    def __new__(cls, owner: object, sock: socket.socket) -> Self:
        made = super().__new__(cls, owner, methodcaller("close"))
        made.close = getattr(super(type(sock), sock), "close", sock.close)  # that of C; gevent's have none
        return made


_to_close: Final[set[_Closing]] = set()  # elsewhere they might be garbage together with their owner, and never called


class BlockingLink:
    """One TCP connection at a time. `socket`: None without one; `timeout_s`: the time to wait for the peer before `PeerSilent`.
    `look`: called every `look_s` of waiting. `owner`: once it is dropped, what was connected since is closed.
    """

    def __init__(self, look: Callable[[], None], look_s: float = inf) -> None:
        self._look, self._look_s = look, look_s
        self._until_look_s = look_s
        self.timeout_s = 0.0
        self.socket: socket.socket | TlsSocket | None = None
        self._receive_bytes = _RECEIVE_BYTES
        self._spins_to_skip = 0
        self.owner: ref[object] | None = None
        self._closing: _Closing | None = None

    def connect(self, address: Address, timeout_s: float, context: ssl.SSLContext | None = None) -> None:
        """Connects, with `context` over TLS; tries each address of the host in turn. Raises OSError; ImportError: eventlet has
        replaced what is needed, since the import."""
        refuse_eventlet()
        self.timeout_s = timeout_s
        process = os.getpid()
        problem: OSError = OSError(f"{address.host} has no address")
        for family, kind, protocol, _, where in _found(address, timeout_s):
            sock = self.socket = socket.socket(family, kind, protocol)  # `wake` ends the attempt
            if self.owner is not None and (owner := self.owner()) is not None:
                _to_close.difference_update([each for each in _to_close.copy() if each() is None])
                self._closing = _Closing(owner, sock)
                _to_close.add(self._closing)
            try:
                self._connect_socket(sock, where)
            except OSError as error:
                self.close()
                if raised_by_handler(error):
                    raise
                problem = error
            else:
                break
        else:
            raise problem
        if os.getpid() != process:  # a signal's handler has forked: the parent goes on with this connection
            self.close()
            raise OSError(errno.ECONNABORTED, "this process was forked while it connected")
        if address.tls:
            assert context is not None, "made by Options.completed"
            self._secure(sock, context, address.host)

    def _connect_socket(self, sock: socket.socket, where: tuple[object, ...]) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(where)
        if code == errno.EINPROGRESS:
            try:
                self._wait(sock, select.POLLOUT, self.timeout_s)
            except PeerSilent:
                raise ConnectTimeout(self.timeout_s) from None
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _secure(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Puts TLS over the connection, after the server has shown who it is. Raises OSError."""
        self.socket = secured = TlsSocket(sock, context, server_side=False, host=host)
        try:
            while not secured.start():
                self._wait(secured, select.POLLIN, self.timeout_s)
                with contextlib.suppress(BlockingIOError):
                    secured.feed()
        except ssl.SSLError as error:
            raise TlsFailed(tls_refused(reason_of(error))) from None

    def greet(self, address: Address, session: ClientSession[PolledSignal], options: ClientOptions, timeout_s: float) -> None:
        """Connects, and has the session's hello answered. Raises OSError, EventStoreError; Unanswered: a step of it took longer
        than the timeout.
        """
        self.connect(address, timeout_s, options.ssl_context)
        try:
            self.send(session.connected(), session.receive)
            while session.welcome is None:
                session.receive(self.receive(timeout_s))
        except PeerSilent:
            raise HelloTimeout(timeout_s) from None
        except EndOfStream:
            failed = self.socket.failed if isinstance(self.socket, TlsSocket) else None
            if failed:
                raise TlsFailed(tls_refused(failed)) from None
            raise EndOfStream("the connection was closed before the hello was answered") from None
        except ssl.SSLError as error:
            raise TlsFailed(tls_refused(reason_of(error))) from None

    def close(self) -> None:
        """Closes the connection, if there is one. Sends nothing: a child's copy is closed so, too."""
        _receiving.discard(self)
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        if self._closing is not None:
            _to_close.discard(self._closing)
            self._closing = None

    def wake(self) -> None:
        """Ends the connection from any thread; a thread that waits in `receive` gets `EndOfStream`."""
        sock = self.socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _connected(self) -> socket.socket | TlsSocket:
        if self.socket is None:  # a signal's handler has forked, and this is the child
            raise EndOfStream("the connection was closed")
        return self.socket

    def send(self, data: bytes, take: Callable[[bytes], None]) -> None:
        """Sends all of it, and passes what arrives meanwhile to `take`. Raises TimedOut, or as `receive`."""
        sock = self._connected()
        rest: bytes | memoryview = data
        try:
            while rest:
                try:
                    sent = sock.send(rest)
                    if sent == len(rest):  # nearly always
                        return
                    rest = memoryview(rest)[sent:]
                except BlockingIOError:
                    if self._wait(sock, select.POLLIN | select.POLLOUT, self.timeout_s) & ~select.POLLOUT:
                        take(self.receive(self.timeout_s))
        except TimedOut:
            self.wake()  # the rest cannot be sent later
            raise

    def receive(self, timeout_s: float) -> bytes:
        """Waits for data and returns it. Raises PeerSilent, EndOfStream, another OSError; TimedOut: it can be called again."""
        sock = self._connected()
        try:
            _receiving.add(self)
            data = self._spin(sock)
            while data is None:
                self._wait(sock, select.POLLIN, timeout_s)
                try:
                    data = sock.recv(self._receive_bytes)
                except BlockingIOError:
                    continue
        finally:
            _receiving.discard(self)
        if not data:
            raise EndOfStream("the server closed the connection")
        full = len(data) == self._receive_bytes
        self._receive_bytes = _RECEIVE_BYTES_MAX if full else _RECEIVE_BYTES
        return data

    def _wait(self, sock: socket.socket | TlsSocket, events: int, timeout_s: float) -> int:
        """Waits until the socket is ready, and returns for what. Raises PeerSilent, TimedOut. A look is due after so much
        waiting, however many calls it takes.
        """
        poll = select.poll()
        poll.register(sock, events)
        left_s = timeout_s
        while True:
            wait_s = max(0.0, min(left_s, self._until_look_s))
            if active:
                wait_s = shortened(wait_s)
            if ready := poll.poll(wait_s * 1000):
                self._until_look_s = self._look_s
                return ready[0][1]
            left_s -= wait_s
            self._until_look_s -= wait_s
            if self._until_look_s <= 0:
                self._until_look_s = self._look_s
                self._look()
            if left_s <= 0:
                raise PeerSilent(f"neither sent nor received anything for {timeout_s:g} s")
            check_time()

    def _spin(self, sock: socket.socket | TlsSocket) -> bytes | None:
        """Returns what arrives within a moment, without sleeping: waking up takes 60 µs, a good part of a round trip.

        Does not spin on the only processor, nor while other threads of this process wait for answers. After a spin in vain, or
        one in which a single look took long (another thread needed the processor or the interpreter), skips the next ones.
        """
        if not _CAN_SPIN or self._spins_to_skip or len(_receiving) > 1:
            self._spins_to_skip = max(0, self._spins_to_skip - 1)
            return None
        now = time.perf_counter()
        until = now + _SPIN_SECONDS
        while now < until:
            try:
                return sock.recv(self._receive_bytes)
            except BlockingIOError:
                before, now = now, time.perf_counter()
                if now - before > _PREEMPTED_SECONDS:
                    break
        self._spins_to_skip = _SPINS_SKIPPED
        return None


def _found(address: Address, timeout_s: float) -> Sequence[tuple[Any, ...]]:
    """Returns what `getaddrinfo` does. That knows no limit, and takes long where a name server is silent: a name is looked up
    on a thread, which may outlive the wait for it. Raises OSError; ConnectTimeout, TimedOut: not in time.
    """
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    ended: SimpleQueue[tuple[Sequence[tuple[Any, ...]], Exception | None]] = SimpleQueue()

    def look_up() -> None:
        try:
            ended.put((socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), None))
        except Exception as error:
            ended.put(((), error))

    try:
        threading.Thread(target=look_up, name=f"address of {address.host}", daemon=True).start()
    except RuntimeError:  # no thread begins any more: Python is ending
        look_up()
    try:
        found, error = ended.get(timeout=shortened(timeout_s))
    except Empty:
        check_time()
        raise ConnectTimeout(timeout_s) from None
    if error is not None:
        raise error
    return found


def first_to_answer(addresses: Sequence[Address], options: ClientOptions) -> tuple[Address | None, list[Attempt]]:
    """Connects to all of the addresses at once, on threads. Returns the one whose server answers a hello first, None if none
    does within the connect timeout; and those that had failed by then.
    """
    ended: SimpleQueue[tuple[Address, Exception | None]] = SimpleQueue()
    links = [BlockingLink(lambda: None) for _ in addresses]

    def attempt(address: Address, link: BlockingLink) -> None:
        try:
            session = ClientSession(options.name, PolledSignal, several=True, token=options.token)
            link.greet(address, session, options, options.connect_timeout)
        except Exception as error:
            ended.put((address, error))
        else:
            ended.put((address, None))
        finally:
            link.close()

    failed: list[Attempt] = []
    for address, link in zip(addresses, links, strict=True):
        threading.Thread(target=attempt, args=(address, link), name=f"hello to {address}", daemon=True).start()
    try:
        for _ in addresses:
            limit = current() if active else None
            try:
                address, error = ended.get(timeout=None if limit is None else limit.left_s)
            except Empty:
                assert limit is not None, "it is waited for without one until it is there"
                raise limit.over() from None
            if error is None:
                return address, failed
            failed.append((address, error))
    finally:
        for link in links:
            link.wake()
    return None, failed


_OWN: Final = (Unanswered, EndOfStream, TlsFailed)


def raised_by_handler(error: Exception) -> bool:
    """Whether a signal handler raised the error: those of sockets have a number."""
    return isinstance(error, OSError) and error.errno is None and not isinstance(error, _OWN)
