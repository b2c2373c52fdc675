"""Serves HTTP with hypercorn, on an event loop and a thread of its own, so that no page delays an append.

Each connection begins here, not in hypercorn's own loop: a new one is shown the certificate of the moment, and what a client's
certificate says goes to `/metrics` and `/health`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ssl import SSLContext, SSLError
from typing import Any, Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

from eventstore.console.open_connections import OpenConnection, OpenConnections
from eventstore.security.handshakes import HANDSHAKE_BYTE, HTTPS_ONLY, NOT_ENDED, PLAIN
from eventstore.security.subjects import Shown, shown_by
from eventstore.security.tls_socket import reason_of
from eventstore.timing.pace import Pace

CERTIFICATE: Final = "eventstore.certificate"
"""Where the scope of a request has what the client's certificate says."""
_HANDSHAKE_S: Final = 10.0
_LOOK_S: Final = 0.1
_PART_BYTES: Final = 4096
_SENT_BYTES: Final = 65_536
_TAKEN_S: Final = 10.0
_log = logging.getLogger(__name__)

App = Callable[[Any, Any, Any], Awaitable[None]]


@contextmanager
def serving(
    listening: socket.socket,
    context: Callable[[], SSLContext] | None,
    app: App,
    beside: Sequence[Callable[[], Awaitable[None]]],
    pace: Pace,
    failed: Callable[[str, str], None] = lambda client, why: None,
) -> Iterator[None]:
    """Serves `app` on a thread until the block ends, and runs all of `beside` there. `context`: of TLS, for the next client.
    `pace`: of the requests. `failed`: told the client and the reason if a handshake fails.
    """
    listener = _Listener(context, app, beside, pace, failed)
    ready = threading.Event()
    thread = threading.Thread(target=listener.run, args=(listening, ready), name="eventstore-http", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        listener.stop()
        thread.join()


class _Listener:
    def __init__(
        self,
        context: Callable[[], SSLContext] | None,
        app: App,
        beside: Sequence[Callable[[], Awaitable[None]]],
        pace: Pace,
        failed: Callable[[str, str], None],
    ) -> None:
        self._context, self._app, self._beside, self._pace, self._failed = context, app, beside, pace, failed
        self._config = Config()
        self._config.errorlog = logging.getLogger("eventstore.console.http")
        self._config.include_server_header = False
        self._config.keep_alive_timeout = 10
        self._open = OpenConnections()
        self._counted_s = 0.0  # of this thread's processor time
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._turn = trio.StrictFIFOLock()

    def run(self, listening: socket.socket, ready: threading.Event) -> None:
        try:
            trio.run(self._run, listening, ready)
        except Exception:  # the thread would end without a word
            _log.exception("the HTTP listener has failed; events are served as before")
        finally:
            ready.set()

    async def _run(self, listening: socket.socket, ready: threading.Event) -> None:
        listening.setblocking(False)
        self._token = trio.lowlevel.current_trio_token()
        self._workers = WorkerContext(None)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        with self._scope:
            async with trio.open_nursery() as nursery:
                for each in self._beside:
                    nursery.start_soon(each)
                nursery.start_soon(self._end_all)
                ready.set()
                await trio.serve_listeners(self._handle, [listener])

    def stop(self) -> None:
        """Ends the listener, from another thread."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)

    async def _end_all(self) -> None:
        try:
            await trio.sleep_forever()
        finally:  # a connection whose client takes nothing is not ended by being cancelled
            self._open.end_all()

    async def _handle(self, stream: trio.SocketStream) -> None:
        host = "a client"
        with suppress(OSError):  # it is gone already
            host = str(stream.socket.getpeername()[0])
        connection = self._open.admit(stream, host)
        if connection is None:
            await trio.aclose_forcefully(stream)
            return
        try:
            with connection.scope:
                await self._serve(connection)
        except (trio.ClosedResourceError, OSError):
            pass  # it gave way, or is gone
        except Exception:  # of one connection; the others continue
            _log.exception("a connection of HTTP has failed")
        finally:
            self._open.remove(connection)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _serve(self, connection: OpenConnection) -> None:
        first = b""
        with trio.move_on_after(_HANDSHAKE_S):  # connections that are opened and closed cost little until here
            first = await connection.stream.socket.recv(1, socket.MSG_PEEK)
        if not first:
            return
        stream: Any = _Patient(connection)
        if self._context is None:
            await self._speak(connection, stream, None)
            return
        if first != HANDSHAKE_BYTE:
            self._failed(connection.host, PLAIN)
            await connection.stream.socket.recv(_PART_BYTES)  # closing a socket with unread bytes would reset the connection
            await stream.send_all(HTTPS_ONLY)
            return
        await self._my_turn(connection)
        secure = trio.SSLStream(stream, self._context(), server_side=True, https_compatible=True)
        with trio.move_on_after(_HANDSHAKE_S) as waited:
            try:
                await secure.do_handshake()
            except trio.BrokenResourceError as error:  # it does not speak TLS, or is not let in
                cause = error.__cause__
                why = reason_of(cause) if isinstance(cause, SSLError) else NOT_ENDED
                self._failed(connection.host, why)
                return
        if waited.cancelled_caught:
            self._failed(connection.host, NOT_ENDED)
            return
        await self._speak(connection, secure, shown_by(secure.getpeercert()))

    async def _allowed(self) -> None:
        while True:
            wait_s = self._pace.wait_s()
            if not wait_s:
                return
            await trio.sleep(min(wait_s, _LOOK_S))

    async def _my_turn(self, connection: OpenConnection) -> None:
        """Returns when the client may be served, in rotation over hosts: this thread takes little processor time for itself."""
        self._count()
        async with connection.line, self._turn:  # one looks whether it may go on, for all that wait
            await self._allowed()

    def _count(self) -> None:
        before, self._counted_s = self._counted_s, time.thread_time()
        self._pace.add(self._counted_s - before)

    async def _speak(self, connection: OpenConnection, stream: Any, shown: Shown | None) -> None:
        async def turn() -> None:
            self._open.heard(connection)
            connection.answering += 1
            try:
                await self._my_turn(connection)
            finally:
                connection.answering -= 1

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[CERTIFICATE] = shown
            connection.answering += 1
            try:
                await turn()
                await self._app(scope, receive, _in_turn(turn, _taking_the_rest(receive, send)))
            finally:
                connection.answering -= 1
                self._count()

        state = ConnectionState(LifespanState())
        paced: Any = _Paced(stream, turn)
        await TCPServer(ASGIWrapper(app), self._config, self._workers, state, paced)


def _taking_the_rest(receive: Any, send: Any) -> Any:
    """Returns a `send` that reads the rest of a request while it ends the answer. Otherwise hypercorn waits for the rest for
    ever, also after the client has gone.
    """

    async def rest() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def sending(message: Any) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rest)
            await send(message)
            nursery.cancel_scope.cancel()

    return sending


def _in_turn(turn: Callable[[], Awaitable[None]], send: Any) -> Any:
    """Returns a `send` that takes a turn for each part of an answer that has others: one that never ends costs as much as many
    requests.
    """

    async def sending(message: Any) -> None:
        if message.get("more_body", False):
            await turn()
        await send(message)

    return sending


class _Patient:
    """A socket that ends its connection if the client takes nothing for a while: hypercorn waits for ever."""

    def __init__(self, connection: OpenConnection) -> None:
        self._connection, self._stream = connection, connection.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            with trio.move_on_after(_TAKEN_S) as waited:
                try:
                    await self._stream.send_all(rest[:_SENT_BYTES])
                except trio.BrokenResourceError:
                    self._connection.end()
                    raise
            if waited.cancelled_caught:
                self._connection.end()
                raise trio.BrokenResourceError("the client takes nothing")
            rest = rest[_SENT_BYTES:]


class _Paced:
    """A stream that hands on what has arrived in small parts, and when it is its turn: requests that are begun and taken back,
    or make no sense, cost as much as others.
    """

    def __init__(self, stream: Any, turn: Callable[[], Awaitable[None]]) -> None:
        self._stream, self._turn = stream, turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive_some(self, _: int) -> bytes:
        data: bytes = await self._stream.receive_some(_PART_BYTES)
        if data:
            await self._turn()
        return data
