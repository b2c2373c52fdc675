"""Hands requests of the listener to the console, to the HTTP API, or to what answers `/metrics` and `/health`, and adds the
headers that browsers go by to every answer.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from eventstore.console.headers import headers_of
from eventstore.console.listener import CERTIFICATE
from eventstore.security.loopback import is_loopback

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

App = Callable[[Any, Any, Any], Awaitable[None]]

_MISDIRECTED: Final = b"this is for this machine: open it at localhost or 127.0.0.1\n"


def for_this_machine(app: App, refusal: bytes = _MISDIRECTED, media_type: bytes = b"text/plain") -> App:
    """Returns an application that answers only requests that name this machine, since anyone who reaches it may do everything:
    a stranger's page, whose name was made to point to this machine, is refused.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if is_loopback(_host(scope)):
            await app(scope, receive, send)
        else:
            await _send(send, 421, refusal, [(b"content-type", media_type)])

    return answer


def split(apps: Mapping[str, App], others: WSGIApplication) -> App:
    """Returns an application that gives requests below a path of `apps` to its application, and all else to `others`."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        wanted = [(name.encode(), value.encode()) for name, value in headers_of(tls=scope["scheme"] == "https").items()]

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                message = {**message, "headers": given + [each for each in wanted if each[0] not in names]}
            await send(message)

        path = scope["path"]
        app = next((app for prefix, app in apps.items() if path == prefix or path.startswith(prefix + "/")), None)
        if app is None:
            await _answer_wsgi(others, scope, send_with_headers)
        else:
            await app(scope, receive, send_with_headers)

    return answer


def _host(scope: Any) -> str:
    host = _header(scope, b"host") or ""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _header(scope: Any, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), None)


async def _answer_wsgi(application: WSGIApplication, scope: Any, send: Any) -> None:
    """Answers a request that has no body."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"],
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": "",
        "SERVER_PORT": "",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(),
        CERTIFICATE: scope.get(CERTIFICATE),
    }
    for name in (b"authorization", b"accept", b"accept-encoding"):
        if (value := _header(scope, name)) is not None:
            environ[f"HTTP_{name.decode().upper().replace('-', '_')}"] = value
    begun: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], error: object = None) -> Callable[[bytes], object]:
        begun.append((status, headers))
        return lambda body: None

    def run() -> bytes:
        found: Iterable[bytes] = application(environ, start_response)
        return b"".join(found)

    body = await trio.to_thread.run_sync(run, abandon_on_cancel=True)
    status, headers = begun[-1]
    await _send(send, int(status[:3]), body, [(name.lower().encode(), value.encode("latin-1")) for name, value in headers])


async def _send(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    known = [each for each in headers if each[0] != b"content-length"]
    await send({"type": "http.response.start", "status": status, "headers": [*known, (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
