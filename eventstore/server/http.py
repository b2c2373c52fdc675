"""Serves `/metrics`, `/health`, the console and the HTTP API, on a thread of its own: a slow scraper never delays an append.
Nor do many: all requests together have a fifth of the time of a processor.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, contextmanager
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from eventstore.console.headers import headers_of
from eventstore.console.subject import CONNECTIONS_MAX, Subject, is_installed
from eventstore.extras import advice
from eventstore.metrics import StatValues
from eventstore.security.handshakes import HANDSHAKE_BYTE, HTTPS_ONLY, PLAIN
from eventstore.security.subjects import shown_by
from eventstore.security.tls_socket import reason_of
from eventstore.server.bootstrap import bind, cannot_listen, listen, parse_address
from eventstore.timing.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from eventstore.security.tls import ServerTls
    from eventstore.server.access.security import Security

_CERTIFICATE = "eventstore.certificate"
_REFUSED_BYTES = 4096
_POLL_SECONDS = 0.1  # how long stopping may take
_log = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128
    tls: ServerTls | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._pace = Pace()
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each request has a thread; one that finds too many is closed."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._pace.add(time.thread_time())
            self._room.release()

    def get_request(self) -> tuple[socket.socket, object]:
        if wait_s := self._pace.wait_s():
            time.sleep(min(wait_s, _POLL_SECONDS))
            raise BlockingIOError  # it is asked again
        try:
            accepted, address = super().get_request()
        except OSError:  # out of file descriptors; without a pause this thread would retry in a busy loop
            time.sleep(_POLL_SECONDS)
            raise
        return accepted, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """On the thread of the request: over TLS; a plain request is answered that TLS is needed."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_Quiet.timeout)
        if request.recv(1, socket.MSG_PEEK) not in (b"", HANDSHAKE_BYTE):
            self.tls.failed_handshakes.note(str(client_address[0]), PLAIN)
            request.recv(_REFUSED_BYTES)  # closing a socket with unread bytes would reset the connection
            request.sendall(HTTPS_ONLY)
            return
        secure = self.tls.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        try:
            super().finish_request(secure, client_address)
        finally:
            self.shutdown_request(secure)

    def handle_error(self, request: object, client_address: Any) -> None:
        """Says nothing of a client that went away, or that does not speak TLS."""
        error = sys.exception()
        if self.tls is not None and isinstance(error, ssl.SSLError):
            self.tls.failed_handshakes.note(str(client_address[0]), reason_of(error))
        if not isinstance(error, OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # a socket, or TLS over one

    def server_bind(self) -> None:
        """Skips the base class's name lookup, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def get_environ(self) -> WSGIEnvironment:
        """Adds what the client's certificate says."""
        found = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        return {**super().get_environ(), _CERTIFICATE: shown_by(found)}

    def log_message(self, format: str, *args: object) -> None:
        """The access log of a scraper is noise."""


@contextmanager
def http_server(
    address: str,
    metrics: WSGIApplication,
    health: Callable[[], StatValues],
    security: Security | None = None,
    subject: Subject | None = None,
) -> Iterator[str]:
    """Serves until the block ends; yields the HOST:PORT it listens on.

    `subject`: what the console is about, where its libraries are installed, and the HTTP API; None: there is neither.

    Raises:
        FolderRefused: it cannot listen there.
    """
    pages, api = subject is not None and subject.pages, subject is not None and subject.api
    without = None
    if pages and not is_installed():
        pages, without = False, f"/console is not served, for its libraries are not installed; {advice('console')}"
        _log.info(without)
    served = ["/metrics", "/health", *(["/console"] if pages else []), *(["/api"] if api else [])]
    application = _application(metrics, health, security, served, without)
    if subject is not None and (pages or api):
        from eventstore.console.gatekeeping import split
        from eventstore.console.listener import serving

        pace, beside, apps = Pace(), [], {}
        if pages:
            from eventstore.console.assembly import assembled
            from eventstore.console.console import PATH

            console, apps[PATH] = assembled(subject)
            beside.append(console.run)
        if api:
            from eventstore.http_api.assembly import API, http_api

            clients, apps[API] = http_api(subject)
            beside.append(clients.run)
        app = split(apps, _counted(application, pace))
        tls = None if security is None else security.tls
        with closing(bind(address, "http")) as listening:
            listen(listening, address)
            secured = () if tls is None else (tls.failed_handshakes.note,)
            with serving(listening, None if tls is None else lambda: tls.context, app, beside, pace, *secured):
                yield f"{parse_address(address, 'http')[0]}:{listening.getsockname()[1]}"
        return
    by_tls = security is not None and security.tls is not None
    with _small_server(address, _with_headers(application, tls=by_tls), security) as listens:
        yield listens


def _counted(application: WSGIApplication, pace: Pace) -> WSGIApplication:
    """Returns the application with what it takes of the processor, on a thread that has others, added to the pace."""

    def counted(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        began = time.thread_time()
        try:
            return application(environ, start_response)
        finally:
            pace.add(time.thread_time() - began)

    return counted


def _with_headers(application: WSGIApplication, *, tls: bool) -> WSGIApplication:
    """Returns the application with what browsers go by in its answers, which a console adds itself."""
    wanted = list(headers_of(tls=tls).items())

    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
            given = {name.lower() for name, _ in headers}
            return start_response(status, headers + [each for each in wanted if each[0] not in given], *error)

        return application(environ, start)

    return answering


def _application(
    metrics: WSGIApplication,
    health: Callable[[], StatValues],
    security: Security | None,
    served: Sequence[str],
    without: str | None,
) -> WSGIApplication:
    """`served`: the paths that there are. `without`: why there is no console, if there was to be one."""
    there_are = f"{', '.join(served[:-1])} and {served[-1]}"
    may = None if security is None else security.may_scrape()

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        known = may is None or may(environ.get("HTTP_AUTHORIZATION"), environ.get(_CERTIFICATE))
        if path == "/metrics" and not known:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [b"this needs the permission 'stats'\n"]
        if path == "/metrics":
            return metrics(environ, start_response)
        if path == "/health":
            stats = health()
            if not known:
                stats = {"healthy": stats.get("healthy")}
            status = "200 OK" if stats.get("healthy") else "503 Service Unavailable"
            start_response(status, [("Content-Type", "application/json")])
            return [json.dumps(stats).encode() + b"\n"]
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        if without is not None and f"{path}/".startswith("/console/"):
            return [f"{without}\n".encode()]
        return [f"there are {there_are}\n".encode()]

    return application


@contextmanager
def _small_server(address: str, application: WSGIApplication, security: Security | None) -> Iterator[str]:
    """Serves without a library: all there is without the console."""
    host, port = parse_address(address, "http")
    try:
        server = make_server(host, port, application, server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        raise cannot_listen(f"{host}:{port}", error) from None
    server.tls = None if security is None else security.tls
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="eventstore-http", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
