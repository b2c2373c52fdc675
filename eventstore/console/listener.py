"""Serves HTTP with hypercorn, on an event loop and a thread of its own, so that no page delays an append.

Each connection begins here, not in hypercorn's own loop: a new one is shown the certificate of the moment, and what a client's
certificate says goes to `/metrics` and `/health`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from ssl import SSLContext, SSLError
from typing import Any, Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

from eventstore.console.subject import CONNECTIONS_MAX
from eventstore.security.tls_socket import reason_of, subject_text
from eventstore.timing.pace import Pace

SUBJECT: Final = "eventstore.subject"
"""Where the scope of a request has the subject of the client's certificate."""
_HANDSHAKE_S: Final = 10.0
_LOOK_S: Final = 0.1
_PART_BYTES: Final = 4096
_log = logging.getLogger(__name__)

App = Callable[[Any, Any, Any], Awaitable[None]]


@contextmanager
def serving(
    listening: socket.socket, context: Callable[[], SSLContext] | None, app: App, beside: Callable[[], Awaitable[None]],
    pace: Pace, failed: Callable[[str, str], None] = lambda client, why: None,
) -> Iterator[None]:  # fmt: skip
    """Serves `app` on a thread until the block ends, and runs `beside` there. `context`: of TLS, for the next client. `pace`:
    of the requests. `failed`: told the client and the reason if a handshake fails.
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
        self, context: Callable[[], SSLContext] | None, app: App, beside: Callable[[], Awaitable[None]],
        pace: Pace, failed: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._context, self._app, self._beside, self._pace, self._failed = context, app, beside, pace, failed
        self._config = Config()
        self._config.errorlog = logging.getLogger("eventstore.console.http")
        self._config.include_server_header = False
        self._config.keep_alive_timeout = 10
        self._open = 0
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
                nursery.start_soon(self._beside)
                ready.set()
                await trio.serve_listeners(self._handle, [listener])

    def stop(self) -> None:
        """Ends it, from another thread."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)

    async def _handle(self, stream: trio.SocketStream) -> None:
        if self._open >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            await self._serve(stream)
        except Exception:  # of one connection; the others continue
            _log.exception("a connection of HTTP has failed")
        finally:
            self._open -= 1
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self._context is None:
            await self._speak(stream, None)
            return
        client = "a client"
        with suppress(OSError):  # it is gone already
            client = str(stream.socket.getpeername()[0])
        await self._my_turn()
        secure = trio.SSLStream(stream, self._context(), server_side=True, https_compatible=True)
        with trio.move_on_after(_HANDSHAKE_S) as waited:
            try:
                await secure.do_handshake()
            except trio.BrokenResourceError as error:  # it does not speak TLS, or is not let in
                cause = error.__cause__
                why = reason_of(cause) if isinstance(cause, SSLError) else "it was begun and not ended"
                self._failed(client, why)
                return
        if not waited.cancelled_caught:
            found = secure.getpeercert()
            await self._speak(secure, subject_text(found.get("subject", ())) if found else None)

    async def _allowed(self) -> None:
        while True:
            wait_s = self._pace.wait_s()
            if not wait_s:
                return
            await trio.sleep(min(wait_s, _LOOK_S))

    async def _my_turn(self) -> None:
        """Returns when a client may be served, after those that were: this thread takes little for itself."""
        self._count()
        async with self._turn:  # one looks whether it may go on, for all that wait
            await self._allowed()

    def _count(self) -> None:
        before, self._counted_s = self._counted_s, time.thread_time()
        self._pace.add(self._counted_s - before)

    async def _speak(self, stream: Any, subject: str | None) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[SUBJECT] = subject
            await self._my_turn()
            try:
                await self._app(scope, receive, send)
            finally:
                self._count()

        state = ConnectionState(LifespanState())
        paced: Any = _Paced(stream, self._my_turn)
        await TCPServer(ASGIWrapper(app), self._config, self._workers, state, paced)


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
