"""A mail server and an HTTP server that alarms are sent to."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import DEADLINE_SECONDS


@dataclass
class Mailbox:
    """What a mail server took; it refuses the first `refuses` messages, and those to `unknown`."""

    port: int = 0
    refuses: int = 0
    unknown: str = "nobody@example.org"
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    users: list[bytes] = field(default_factory=list)

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address == self.unknown:
            return "550 there is no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 yes"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refuses:
            self.refuses -= 1
            return "451 come again"
        self.recipients += envelope.rcpt_tos
        mail = message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 taken"


@contextmanager
def mail_server(tls: SSLContext | None = None, *, implicit: bool = False, password: bytes | None = None) -> Iterator[Mailbox]:
    """Runs one on a free port. `tls`: it insists on STARTTLS, or speaks TLS from the start with `implicit`."""
    pytest.importorskip("aiosmtpd")
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult

    box = Mailbox(free_port())

    def check(server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        box.users.append(given.login)
        return AuthResult(success=given.password == password)

    more: dict[str, Any] = {} if tls is None else {"tls_context": tls, "require_starttls": True}
    if implicit:
        more = {"ssl_context": tls}
    if password is not None:
        more |= {"authenticator": check, "auth_required": True, "auth_require_tls": tls is not None and not implicit}
    warnings.filterwarnings("ignore", "Requiring AUTH while not requiring TLS")  # it speaks TLS from the start
    server = Controller(box, hostname="127.0.0.1", port=box.port, **more)
    server.start()
    try:
        yield box
    finally:
        server.stop()


@dataclass
class Posts:
    """What an HTTP server took, with the headers; it answers `answers` first, and then 204."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    asked: int = 0

    async def are_taken(self) -> bool:
        return bool(self.taken)


@contextmanager
def http_receiver(*answers: int, tls: SSLContext | None = None) -> Iterator[Posts]:
    """Runs one on a free port."""
    posts = Posts(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.asked += 1
            status = posts.answers.pop(0) if posts.answers else 204
            if status == 204:
                posts.taken.append((dict(self.headers), body))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at `taken`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    posts.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}/hook?of=test"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield posts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def talker(*said: bytes, then: bytes = b"", every_s: float = 0.02) -> Iterator[int]:
    """Runs a server that says each part when something has arrived, then `then` again and again for as long as it is let;
    returns its port.
    """
    done = threading.Event()

    def talk(client: socket.socket) -> None:
        with client, suppress(OSError):
            for number, part in enumerate(said):
                if number and not client.recv(65_536):
                    return
                client.sendall(part)
            while then and not done.wait(every_s):
                client.sendall(then)
            done.wait(DEADLINE_SECONDS)

    def run() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=talk, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            done.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
