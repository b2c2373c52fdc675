"""Serves `/metrics` and `/health` over HTTP on a separate thread, so that a slow scraper never delays an append."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from eventstore.metrics import Stats
from eventstore.server.bootstrap import cannot_listen, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_POLL_SECONDS = 0.1  # how long stopping may take


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, object]:
        try:
            return super().get_request()
        except OSError:  # out of file descriptors; without a pause this thread would retry in a busy loop
            time.sleep(_POLL_SECONDS)
            raise

    def server_bind(self) -> None:
        """Skips the base class's name lookup, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """The access log of a scraper is noise."""


@contextmanager
def http_server(address: str | None, metrics: WSGIApplication, health: Callable[[], Stats]) -> Iterator[str | None]:
    """Serves until the block ends; yields the HOST:PORT it listens on. Serves nothing if `address` is None.

    Raises:
        FolderRefused: it cannot listen there.
    """
    if address is None:
        yield None
        return
    host, port = parse_address(address, "http")

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return metrics(environ, start_response)
        if path == "/health":
            stats = health()
            status = "200 OK" if stats.get("healthy") else "503 Service Unavailable"
            start_response(status, [("Content-Type", "application/json")])
            return [json.dumps(stats).encode() + b"\n"]
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"there are /metrics and /health\n"]

    try:
        server = make_server(host, port, application, server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        raise cannot_listen(f"{host}:{port}", error) from None
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="eventstore-http", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
