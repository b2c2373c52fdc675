"""Decodes each request and routes it to its handler, which answers it now or later. Answers itself what all listeners serve."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from eventstore import __version__
from eventstore.errors import EventStoreError, ProtocolError, UnknownOperation
from eventstore.flat import Scalar
from eventstore.metrics import Metric, MetricSource, StatValues, counter, gauge, text
from eventstore.protocol import (
    BadRequest,
    RequestDecoder,
    Welcome,
    agreed_version,
    encode_answer,
    encode_error,
)
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Hello, ListClients, Ping
from eventstore.protocol.requests import Stats as StatsRequest
from eventstore.server.access.connected_clients import client_rows
from eventstore.server.access.doorkeeper import Doorkeeper
from eventstore.server.feature import Feature, Route
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

_SERVER_NAME: Final = f"eventstore {__version__}"


ConnectionSeat: TypeAlias = "Callable[[], tuple[bytes, int, int | None, int]]"
"""Returns cluster, version of the map, number of the shard, None if there is only the map, and the layout of its slots."""


class Dispatch:
    """Routes the requests of all connections. `node`: the broker's, if there is a broker. `seat`: of a server in a cluster.
    `durability`: of what is committed, for the answers to clients that ask for it. `door`: None: everyone may do everything.
    `routes`: by the kind of a request, as it is checked and answered now.
    """

    def __init__(
        self,
        gate: Gate,
        store: uuid.UUID,
        requests_max: int,
        routes: Mapping[type[Request], Route],
        stats: Callable[[], StatValues],
        node: int | None = None,
        seat: ConnectionSeat | None = None,
        durability: Callable[[], int | None] | None = None,
        door: Doorkeeper | None = None,
    ) -> None:
        self.gate = gate
        self._store = store
        self._node = node
        self._seat = seat
        self._durability = durability
        self._requests_max = requests_max
        self._door = door
        served: dict[type[Request], Route] = {
            Hello: self._hello,
            StatsRequest: self._answer_stats,
            Ping: self._ping,
            ListClients: self._list_clients,
            **routes,
        }
        self.routes = served if door is None else door.guard(served)
        self._stats = stats
        self._decode = RequestDecoder().decode
        self.requests = self.bad_requests = 0
        self.feature = Feature(metrics=[MetricSource(DISPATCH_METRICS, lambda: self)])

    def handle(self, connection: ServerConnection, payload: bytes) -> None:
        """Handles one payload; it is answered by an error if by nothing else. Raises nothing that a client can cause."""
        self.requests += 1
        connection.request_bytes = len(payload)
        if connection.charge is not None:
            connection.charge(connection)
        try:
            request_id, request = self._decode(payload)
        except BadRequest as bad:
            self.bad_requests += 1
            connection.doing = "malformed"
            self.gate.send(connection, encode_error(bad.request_id, bad.error))
            return
        kind = connection.doing = request.__class__
        try:
            if not connection.greeted and kind is not Hello:
                raise ProtocolError("the first request of a connection is HELLO")
            if kind not in self.routes:
                name = kind.__name__
                raise UnknownOperation(
                    f"{name} is not served here: a worker accepts only commands, and a server with broker = false no messages; "
                    "ask the store, or a server with a broker",
                    operation=name,
                )
            self.routes[kind](connection, request_id, request)
        except EventStoreError as error:
            self.gate.send(connection, encode_error(request_id, error))

    def _hello(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, Hello)
        version = agreed_version(request)
        if self._door is not None and not self._door.admit(connection, request_id, request):
            return
        connection.greeted, connection.name = True, ascii(request.client)[1:-1]  # escaped: it is logged, and must stay one line
        connection.in_parts, connection.places = request.in_parts, request.places
        connection.durability = self._durability if request.durability else None
        welcome = Welcome(version, _SERVER_NAME, self._store.bytes, requests_max=self._requests_max, node=self._node)
        if self._seat is not None:
            cluster, map_version, shard, layout = self._seat()
            welcome = replace(welcome, cluster=cluster, map_version=map_version, shard=shard, layout=layout)
        self.gate.send(connection, encode_answer(request_id, Hello, welcome))

    def _list_clients(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, ListClients)
        rows = client_rows(self.gate, self._door, request.skip, request.limit)
        self.gate.send(connection, encode_answer(request_id, ListClients, rows))

    def _answer_stats(self, connection: ServerConnection, request_id: int, _: Request) -> None:
        values: dict[str, Scalar] = {**self._stats()}
        self.gate.send(connection, encode_answer(request_id, StatsRequest, values))

    def _ping(self, connection: ServerConnection, request_id: int, _: Request) -> None:
        self.gate.send(connection, encode_answer(request_id, Ping, None))


DISPATCH_METRICS: Final[tuple[Metric[Dispatch], ...]] = (
    gauge("connections", "open connections", lambda dispatch: len(dispatch.gate.connections)),
    counter("connections_accepted", "connections accepted", lambda dispatch: dispatch.gate.acceptor.accepted),
    counter(
        "connections_turned_away",
        "connections refused over `connections_max`",
        lambda dispatch: dispatch.gate.acceptor.turned_away,
        "it grows",
    ),
    counter(
        "connections_gave_way",
        "idle connections closed for new ones at `connections_max`",
        lambda dispatch: dispatch.gate.acceptor.gave_way,
        "it grows: a client opens connections and leaves them",
    ),
    counter(
        "connections_slowed",
        "times a connection took more than its share of the server's time, and had to wait for it",
        lambda dispatch: dispatch.gate.scheduler.slowed,
        "it grows: the log names one a minute that does so again at once, `eventstore stats` the last",
    ),
    text(
        "connection_slowed_last",
        "the last connection that took more than its share: client, address, kind of its last request",
        lambda dispatch: dispatch.gate.scheduler.last_slowed,
    ),
    counter("requests", "requests received", lambda dispatch: dispatch.requests),
    counter(
        "bad_requests",
        "requests that could not be decoded",
        lambda dispatch: dispatch.bad_requests,
        "it grows: something that is not a client talks to the port",
    ),
)
