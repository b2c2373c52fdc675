"""The address of a node: a client that connects there gets the map of the cluster, and Elsewhere for everything else."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable

import trio

from eventstore.errors import Elsewhere
from eventstore.metrics import Stats
from eventstore.protocol import encode_ok
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.protocol.requests import Hello, Ping, Unsubscribe
from eventstore.protocol.requests import Stats as StatsRequest
from eventstore.records.cluster_map import ClusterMap
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import Connection, GateLimits
from eventstore.server.net.gate import Gate
from eventstore.server.requests.dispatch import Dispatch, Route
from eventstore.server.requests.map_requests import MapRequests

_ANSWERED_BY_DISPATCH = (Hello, Ping, StatsRequest)


class Entry:
    """Answers HELLO, MAP, PING and STATS. `listener` must be bound; it listens from `run` on."""

    def __init__(
        self, listener: socket.socket, limits: GateLimits, cluster: uuid.UUID, known: ClusterMap, stats: Callable[[], Stats]
    ) -> None:
        self._gate = Gate(listener, limits)
        self.maps = MapRequests(self._gate, known)
        routes: dict[type[Request], Route] = {
            kind: self._elsewhere for kind in DECLARATIONS if kind not in _ANSWERED_BY_DISPATCH
        }
        routes |= {**self.maps.routes, Unsubscribe: self._unsubscribe}
        self._dispatch = Dispatch(self._gate, cluster, limits.requests_max, routes, stats, None, self._seat)
        self._cluster = cluster

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._gate.run, self._dispatch.handle, _nothing, NoBacklog())
            nursery.start_soon(self._gate.run_timeouts)
            task_status.started()

    def say_goodbye(self) -> None:
        """Accepts no more connections, and announces to all clients that the node is stopping."""
        self._gate.say_goodbye()

    def _seat(self) -> tuple[bytes, int, None]:
        return self._cluster.bytes, self.maps.current.version, None

    def _elsewhere(self, connection: Connection, request_id: int, request: Request) -> None:
        raise Elsewhere(None, self.maps.current.version)

    def _unsubscribe(self, connection: Connection, request_id: int, request: Unsubscribe) -> None:
        waiting = connection.bound.pop(request.subscription, None)
        if waiting is not None:
            waiting.cancel()
        self._gate.send(connection, encode_ok(request_id))


def _nothing() -> None:
    """Ends no batch: the entry collects none."""
