"""A client of the HTTP API, by the standard library alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, Final

from tests.cluster.node_process import NodeProcess
from tests.server_thread import ServerThread

ANY_EVENT: Final = {"type": "Happened", "data": {"n": 1}}
EVENTS: Final = "/api/aggregates/a-1/events"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str]:
        """The status and the title of problem details, of which the other parts are checked."""
        assert self.headers["content-type"] == "application/problem+json"
        details = self.json
        assert details["status"] == self.status
        assert details["detail"]
        return self.status, details["title"]


class Api:
    """Asks a server. `token`: of whom it says to be."""

    def __init__(self, server: ServerThread | NodeProcess, token: str | None = None) -> None:
        self.host = server.http.partition("://")[2]
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str | bytes) -> Answer:
        """Underscores in the names of headers stand for dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, body, {**self.headers, **named})
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, value: object, key: str | bytes | None = "c-1", **headers: str) -> Answer:
        """Sends JSON with a command id, if one is given."""
        given: dict[str, str | bytes] = {} if key is None else {"Idempotency_Key": key}
        return self.ask("POST", path, json.dumps(value).encode(), **{"Content_Type": "application/json", **given, **headers})

    def append(self, aggregate_id: str, key: str, *events: object, expected: object = "any") -> Answer:
        """Appends these events, or one."""
        body = {"events": list(events) or [ANY_EVENT], "expected_version": expected}
        return self.post(f"/api/aggregates/{aggregate_id}/events", body, key)

    @contextmanager
    def stream(self, path: str = "/api/events", buffer: int | None = None, **headers: str) -> Iterator[Stream]:
        """Opens a stream. `buffer`: bytes that the socket may hold."""
        opened = socket.socket()
        if buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        host, _, port = self.host.rpartition(":")
        opened.settimeout(60)
        opened.connect((host, int(port)))
        connection = HTTPConnection(self.host)
        connection.sock = opened
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, None, {**self.headers, "Accept": "text/event-stream", **named})
        response = connection.getresponse()
        try:
            yield Stream(response.status, response, opened)
        finally:
            response.close()
            opened.close()


@dataclass(frozen=True)
class Sent:
    """A server-sent event."""

    name: str
    id: str
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Stream:
    """A stream of server-sent events, read as the standard says."""

    def __init__(self, status: int, response: Any, sock: socket.socket) -> None:
        self.status, self._response, self.socket = status, response, sock
        self.comments: list[str] = []
        self._id = ""

    def next(self) -> Sent:
        """Returns the next event. Heartbeats are kept as comments."""
        name, data = "message", list[str]()
        while line := self._response.readline().decode():
            field, colon, value = line.removesuffix("\n").partition(":")
            value = value.removeprefix(" ")
            if not field and colon:
                self.comments.append(value)
            elif field == "id":
                self._id = value
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif not field and data:
                return Sent(name, self._id, "\n".join(data))
        raise EOFError

    def until_heartbeat(self) -> str:
        """Reads until the server has said that there is nothing new; returns the id that came with it."""
        while line := self._response.readline().decode():
            if line.startswith(":"):
                return str(self._response.readline().decode()).removeprefix("id: ").strip()
        raise EOFError
