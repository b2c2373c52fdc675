"""One request, one answer: decodes what a client sent and sees to it that it is answered, now or later."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from eventstore import __version__
from eventstore.errors import EventStoreError, ProtocolError, UnknownOperation
from eventstore.protocol import (
    BadRequest,
    RequestDecoder,
    Welcome,
    agreed_version,
    encode_error,
    encode_ok,
)
from eventstore.protocol.requests import Hello, Ping, Request, Stats
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate

_SERVER_NAME: Final = f"eventstore {__version__}"


Route: TypeAlias = Callable[[Connection, int, Any], None]
Figures: TypeAlias = "Callable[[], dict[str, str | int | bool | None]]"


class Dispatch:
    """Routes requests of all connections. `routes` are those of whoever serves; HELLO, STATS and PING are answered here.

    `node`: that of the broker, if there is one.
    """

    def __init__(
        self, store: uuid.UUID, requests_max: int, routes: Mapping[type[Request], Route], figures: Figures,
        node: int | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._node = node
        self._requests_max = requests_max
        self._routes: dict[type[Request], Route] = {
            Hello: self._hello, Stats: self._stats, Ping: self._ping, **routes,
        }  # fmt: skip
        self._figures = figures
        self._decode = RequestDecoder().decode
        self._gate: Gate | None = None
        self.requests = self.bad_requests = 0

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def handle(self, connection: Connection, payload: bytes) -> None:
        """Sees to it that the request is answered, if only by an error. Raises nothing that a client can cause."""
        self.requests += 1
        try:
            request_id, request = self._decode(payload)
        except BadRequest as bad:
            self.bad_requests += 1
            self._answer(connection, encode_error(bad.request_id, bad.error))
            return
        try:
            route = self._routes.get(request.__class__)
            if not connection.greeted and request.__class__ is not Hello:
                raise ProtocolError("the first request of a connection is HELLO")
            if route is None:
                name = type(request).__name__
                raise UnknownOperation(
                    f"{name} is not served here: a worker takes commands only, and a server without a broker no messages",
                    operation=name,
                )
            route(connection, request_id, request)
        except EventStoreError as error:
            self._answer(connection, encode_error(request_id, error))

    def _answer(self, connection: Connection, frame: bytes) -> None:
        assert self._gate is not None
        self._gate.send(connection, frame)

    def _hello(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Hello)
        version = agreed_version(request)
        connection.greeted, connection.name = True, ascii(request.client)[1:-1]  # it goes into the log: one line stays one
        welcome = Welcome(version, _SERVER_NAME, self._store.bytes, requests_max=self._requests_max, node=self._node)
        self._answer(connection, encode_ok(request_id, *welcome.values()))

    def _stats(self, connection: Connection, request_id: int, _: Request) -> None:
        values: list[str | int | bool | None] = []
        for name, value in self._figures().items():
            values += (name, value)
        self._answer(connection, encode_ok(request_id, *values))

    def figures(self) -> dict[str, int]:
        """What the server counts, by name."""
        gate = self._gate
        assert gate is not None
        return {
            "connections": len(gate.connections),
            "connections_accepted": gate.accepted,
            "connections_turned_away": gate.turned_away,
            "requests": self.requests,
            "bad_requests": self.bad_requests,
        }

    def _ping(self, connection: Connection, request_id: int, _: Request) -> None:
        self._answer(connection, encode_ok(request_id))
