"""A visitor without a browser: asks for pages, keeps the cookie, sends forms."""

from __future__ import annotations

import html
import re
import socket
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from ssl import SSLContext
from urllib.parse import urlencode


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """What is to be read on the page."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


class Visitor:
    """`address`: http://HOST:PORT. `last`: the last page, whose forms it sends."""

    def __init__(self, address: str, context: SSLContext | None = None) -> None:
        self.address = address
        self._host, self._context = address.partition("://")[2], context
        self.cookies: dict[str, str] = {}
        self.last: Answer | None = None

    @property
    def cookie(self) -> str | None:
        """That of its session."""
        return self.cookies.get("eventstore_console")

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        """Sends a form with the CSRF token of the last page, unless it brings one."""
        csrf = re.search(r'name="csrf" value="([^"]+)"', self.last.text if self.last else "")
        body = urlencode({**({"csrf": csrf[1]} if csrf else {}), **form})
        return self._ask("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded", **headers})

    def sign_in(self, token: str) -> Answer:
        """Fills in the form."""
        self.get("/console/sign-in")
        return self.post("/console/sign-in", {"token": token, "to": "/console"})

    def updates(self, path: str) -> socket.socket:
        """Opens a stream of updates."""
        host, _, port = self._host.rpartition(":")
        opened = socket.create_connection((host, int(port)), 30)
        cookie = f"Cookie: {self._sent_cookies()}\r\n" if self.cookies else ""
        opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n{cookie}\r\n".encode())
        return opened

    def _sent_cookies(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        connection = (
            HTTPConnection(self._host, timeout=30)
            if self._context is None
            else HTTPSConnection(self._host, timeout=30, context=self._context)
        )
        try:
            connection.request(method, path, body, {**({"Cookie": self._sent_cookies()} if self.cookies else {}), **headers})
            found = connection.getresponse()
            answer = Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read().decode())
        finally:
            connection.close()
        if (cookie := answer.headers.get("set-cookie")) is not None:
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        if answer.status == 200:
            self.last = answer
        return answer


def read_until(opened: socket.socket, wanted: str) -> str:
    """Returns what a stream has sent when this has come."""
    found = b""
    while wanted.encode() not in found:
        part = opened.recv(65536)
        assert part, f"the stream ended without {wanted!r}: {found[-500:]!r}"
        found += part
    return found.decode()
