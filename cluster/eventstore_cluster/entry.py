"""The address of a node: a client that connects there gets the map of the cluster, and Elsewhere for everything else."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable

import trio

from eventstore.alarms.alarms import Alarms
from eventstore.errors import ConnectionLost, Elsewhere
from eventstore.metrics import Stats
from eventstore.protocol import encode_ok
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.protocol.requests import Hello, Ping, Unsubscribe
from eventstore.protocol.requests import Stats as StatsRequest
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.splits import NEVER_SPLIT
from eventstore.server.access.security import Security
from eventstore.server.alarms.alarm_handlers import alarm_routes
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import Connection, GateLimits
from eventstore.server.net.gate import Gate
from eventstore.server.requests.dispatch import Dispatch, Route
from eventstore.server.requests.map_requests import MapRequests

_ANSWERED_BY_DISPATCH = (Hello, Ping, StatsRequest)
_NO_STORE = uuid.UUID(int=0)


class Entry:
    """Answers HELLO, MAP, PING, STATS and requests about alarms. `listener` must be bound; it listens from `run` on.

    Until it knows a map, all requests fail with ConnectionLost, which says `closed`: why there is none, and the next step.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: GateLimits,
        stats: Callable[[], Stats],
        known: ClusterMap | None = None,
        closed: str = "",
        *,
        security: Security,
        alarms: Alarms | None = None,
    ) -> None:
        self._gate = Gate(listener, limits, security.make_connection)
        self._limits, self._stats, self._closed = limits, stats, closed
        self._door = security.doorkeeper(self._gate)
        self._maps: MapRequests | None = None
        self._alarms = {} if alarms is None else alarm_routes(self._gate, alarms)
        refused: dict[type[Request], Route] = {**dict.fromkeys(DECLARATIONS, self._refuse), **self._alarms}
        self._dispatch = Dispatch(self._gate, _NO_STORE, limits.requests_max, refused, stats, door=self._door)
        if known is not None:
            self.publish(known)

    def publish(self, newer: ClusterMap) -> None:
        """Takes a newer map of the cluster; an older one is ignored."""
        if self._maps is None:
            self._maps = self._opened(newer)
        self._maps.publish(newer)

    def _opened(self, first: ClusterMap) -> MapRequests:
        """Answers by a map from now on."""
        assert first.cluster is not None
        cluster, maps = uuid.UUID(bytes=first.cluster), MapRequests(self._gate, first)

        def elsewhere(connection: Connection, request_id: int, request: Request) -> None:
            raise Elsewhere(None, maps.current.version)

        def seat() -> tuple[bytes, int, None, int]:
            return cluster.bytes, maps.current.version, None, NEVER_SPLIT

        routes: dict[type[Request], Route] = {kind: elsewhere for kind in DECLARATIONS if kind not in _ANSWERED_BY_DISPATCH}
        routes |= {**maps.routes, **self._alarms, Unsubscribe: self._unsubscribe}
        self._dispatch = Dispatch(
            self._gate, cluster, self._limits.requests_max, routes, self._stats, None, seat, door=self._door
        )
        return maps

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._gate.run, self._handle, _nothing, NoBacklog())
            nursery.start_soon(self._gate.run_timeouts)
            if self._door is not None:
                nursery.start_soon(self._door.run)
            task_status.started()

    def say_goodbye(self) -> None:
        """Accepts no more connections, and announces to all clients that the node is stopping."""
        self._gate.say_goodbye()

    def _handle(self, connection: Connection, payload: bytes) -> None:
        self._dispatch.handle(connection, payload)

    def _refuse(self, connection: Connection, request_id: int, request: Request) -> None:
        raise ConnectionLost(self._closed)

    def _unsubscribe(self, connection: Connection, request_id: int, request: Unsubscribe) -> None:
        waiting = connection.bound.pop(request.subscription, None)
        if waiting is not None:
            waiting.cancel()
        self._gate.send(connection, encode_ok(request_id))


def _nothing() -> None:
    """Ends no batch: the entry collects none."""
