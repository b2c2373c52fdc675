"""One request, one answer: decodes what a client sent and sees to it that it is answered, now or later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from eventstore import __version__
from eventstore.errors import EventStoreError, ProtocolError
from eventstore.protocol import (
    BadRequest,
    RequestDecoder,
    Welcome,
    agreed_version,
    encode_error,
    encode_ok,
)
from eventstore.protocol.requests import (
    Append,
    Credit,
    FindCommand,
    Hello,
    Ping,
    Read,
    ReadAll,
    Request,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
)
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.intake import Intake
from eventstore.server.reads import Reads
from eventstore.server.subscriptions import Subscriptions
from eventstore.store.embedded import EmbeddedStore, collect_stats

_SERVER_NAME: Final = f"eventstore {__version__}"
_log = logging.getLogger(__name__)


class Dispatch:
    """Routes requests of all connections."""

    def __init__(
        self, store: EmbeddedStore, intake: Intake, reads: Reads, subscriptions: Subscriptions, requests_max: int
    ) -> None:
        self._store = store
        self._intake = intake
        self._reads = reads
        self._subscriptions = subscriptions
        self._requests_max = requests_max
        self._decode = RequestDecoder().decode
        self._gate: Gate | None = None
        self.requests = self.bad_requests = 0
        self._routes: dict[type[Request], Callable[[Connection, int, Request], None]] = {
            Hello: self._hello,
            Read: self._reads.read,
            ReadAll: self._reads.read_all,
            Version: self._version,
            FindCommand: self._find_command,
            Subscribe: self._subscriptions.begin,
            Credit: self._subscriptions.credit,
            Unsubscribe: self._subscriptions.end,
            Stats: self._stats,
            Ping: self._ping,
        }

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
            if request.__class__ is Append and connection.greeted:
                self._intake.append(connection, request_id, request.commits)
                return
            if not connection.greeted and request.__class__ is not Hello:
                raise ProtocolError("the first request of a connection is HELLO")
            self._routes[request.__class__](connection, request_id, request)
        except EventStoreError as error:
            self._answer(connection, encode_error(request_id, error))

    def _answer(self, connection: Connection, frame: bytes) -> None:
        assert self._gate is not None
        self._gate.send(connection, frame)

    def _hello(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Hello)
        version = agreed_version(request)
        connection.greeted, connection.name = True, ascii(request.client)[1:-1]  # it goes into the log: one line stays one
        welcome = Welcome(version, _SERVER_NAME, self._store.opened.uuid.bytes, requests_max=self._requests_max)
        self._answer(connection, encode_ok(request_id, *welcome.values()))

    def _version(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Version)
        self._answer(connection, encode_ok(request_id, self._store.engine.version(request.aggregate_id)))

    def _find_command(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, FindCommand)
        view = self._store.engine.find_command(request.aggregate_id, request.command_id)
        values = () if view is None else (view.last_version, view.last_sequence)
        self._answer(connection, encode_ok(request_id, *values))

    def _stats(self, connection: Connection, request_id: int, _: Request) -> None:
        values: list[str | int | bool | None] = []
        for name, value in {**collect_stats(self._store), **self.figures()}.items():
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
            "subscriptions": self._subscriptions.count,
        }

    def _ping(self, connection: Connection, request_id: int, _: Request) -> None:
        self._answer(connection, encode_ok(request_id))
