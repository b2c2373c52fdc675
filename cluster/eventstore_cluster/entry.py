"""The address of a node: a client that connects there gets the map of the cluster, and Elsewhere for everything else.

Its shards listen above it.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import trio

from eventstore.alarms.alarms import Alarms
from eventstore.chunks.files import OsFiles
from eventstore.errors import ConnectionLost, Elsewhere, FolderRefused, InvalidArgument
from eventstore.fields import counted
from eventstore.metrics import StatValues
from eventstore.protocol import encode_answer
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.protocol.requests import Hello, ListClients, Ping, Unsubscribe
from eventstore.protocol.requests import Stats as StatsRequest
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.splits import NEVER_SPLIT
from eventstore.server.access.security import Security
from eventstore.server.alarms.alarm_handlers import alarm_routes
from eventstore.server.bootstrap import PORT_MAX, bind, parse_address
from eventstore.server.feature import Feature, Route, begin, routes_of_all
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import GateLimits, ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.dispatch import Dispatch
from eventstore.server.requests.map_requests import MapRequests
from eventstore_cluster.shard_folders import LOCK, PlannedShard
from eventstore_cluster.shard_start import PORTS_BELOW

_SEARCHED: Final = 1_000
"""How many ports are tried to find a free one."""
_LET_GO_S: Final = 1.0
"""How long the process of a killed node, which has closed its store, is waited for until it has closed its address."""
_LET_GO_POLL_S: Final = 0.05
_ANSWERED_BY_DISPATCH = (Hello, ListClients, Ping, StatsRequest)
_NO_STORE = uuid.UUID(int=0)


class ClusterEntry:
    """Answers HELLO, MAP, PING, STATS, LIST_CLIENTS and requests about alarms.

    `listener` must be bound; the entry listens on it from `run` on. Until the entry knows a map, all requests fail with
    ConnectionLost, whose text `closed` says why there is none, and the next step.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: GateLimits,
        stats: Callable[[], StatValues],
        closed: str = "",
        *,
        security: Security,
        alarms: Alarms | None = None,
    ) -> None:
        self._gate = Gate(listener, limits, security.make_connection)
        self._limits, self._stats, self._closed = limits, stats, closed
        self._door = security.doorkeeper(self._gate)
        self._maps: MapRequests | None = None
        self._features = [
            Feature(routes={} if alarms is None else alarm_routes(self._gate, alarms)),
            Feature(routes={Unsubscribe: self._unsubscribe}),
            *security.features(self._door),
        ]
        refused: dict[type[Request], Route] = {**dict.fromkeys(DECLARATIONS, self._refuse), **self._features[0].routes}
        self._dispatch = Dispatch(self._gate, _NO_STORE, limits.requests_max, refused, stats, door=self._door)

    def publish(self, newer: ClusterMap) -> None:
        """Takes a newer map of the cluster; an older one is ignored."""
        if self._maps is None:
            self._maps = self._opened(newer)
        self._maps.publish(newer)

    def _opened(self, first: ClusterMap) -> MapRequests:
        """Answers by a map from now on."""
        assert first.cluster is not None
        cluster, maps = uuid.UUID(bytes=first.cluster), MapRequests(self._gate, first)

        def elsewhere(connection: ServerConnection, request_id: int, request: Request) -> None:
            raise Elsewhere(None, maps.current.version)

        def seat() -> tuple[bytes, int, None, int]:
            return cluster.bytes, maps.current.version, None, NEVER_SPLIT

        routes: dict[type[Request], Route] = {kind: elsewhere for kind in DECLARATIONS if kind not in _ANSWERED_BY_DISPATCH}
        routes |= routes_of_all([maps.feature, *self._features])
        self._dispatch = Dispatch(
            self._gate, cluster, self._limits.requests_max, routes, self._stats, None, seat, door=self._door
        )
        return maps

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled."""
        async with trio.open_nursery() as nursery:
            begin(self._features, nursery, self._gate, self._handle, _nothing, NoBacklog())
            task_status.started()

    def say_goodbye(self) -> None:
        """Accepts no more connections, and announces to all clients that the node is stopping."""
        self._gate.say_goodbye()

    def _handle(self, connection: ServerConnection, payload: bytes) -> None:
        self._dispatch.handle(connection, payload)

    def _refuse(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        raise ConnectionLost(self._closed)

    def _unsubscribe(self, connection: ServerConnection, request_id: int, request: Unsubscribe) -> None:
        waiting = connection.bound.pop(request.subscription, None)
        if waiting is not None:
            waiting.cancel()
        self._gate.send(connection, encode_answer(request_id, Unsubscribe, None))


def _nothing() -> None:
    """Ends no batch: the entry collects none."""


def shard_addresses(listen_at: str, shards: int) -> list[str]:
    """Returns where the shards listen: on the ports from `PORTS_BELOW` above the node's on; on free ones if that is 0.

    Raises:
        InvalidArgument: there are not that many ports.
    """
    host, port = parse_address(listen_at, "listen")
    if port == 0:
        return [f"{host}:0"] * shards
    first = port + PORTS_BELOW
    if first + shards - 1 > PORT_MAX:
        raise InvalidArgument(
            f"the shards would listen on the ports {first} to {first + shards - 1}, the last one is {PORT_MAX}; choose a "
            "lower port for --listen",
            field="listen",
            limit=PORT_MAX,
            value=listen_at,
        )
    return [f"{host}:{first + number}" for number in range(shards)]


def free_addresses(listen_at: str, http: str | None, shards: Sequence[PlannedShard]) -> list[str]:
    """Returns where the shards listen, once no other process listens there. Waits for processes of a killed node that have not
    let go of their addresses yet.

    Raises:
        InvalidArgument: there are not that many ports, or the port of `http` is among them.
        FolderRefused: an address is taken; names the next port for --listen where all are free.
    """
    addresses = shard_addresses(listen_at, len(shards))
    if http in addresses and not http.endswith(":0"):
        raise InvalidArgument(
            f"--http {http} is where shard {addresses.index(http)} listens; choose a port below --listen",
            field="http",
            value=http,
        )
    for shard, address in zip(shards, addresses, strict=True):
        if not _is_free(address) and not _is_let_go(shard, address):
            raise _taken(listen_at, http, shard, address, len(shards))
    return addresses


def _is_free(address: str) -> bool:
    try:
        bind(address).close()
    except FolderRefused:
        return False
    return True


def _is_let_go(shard: PlannedShard, address: str) -> bool:
    """Whether a process of the shard has the address, and will stop, or has just stopped."""
    files, lock = OsFiles(), shard.folder / LOCK
    if not files.exists(lock):
        return False
    until = time.monotonic() + _LET_GO_S
    while not _is_free(address):
        try:
            files.lock(lock).release()
        except FolderRefused:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(_LET_GO_POLL_S)
    return True


def _taken(listen_at: str, http: str | None, shard: PlannedShard, address: str, shards: int) -> FolderRefused:
    host, port = parse_address(listen_at, "listen")
    found: dict[int, bool] = {} if http is None else {parse_address(http, "http")[1]: False}

    def is_free(each: int) -> bool:
        if each not in found:
            found[each] = _is_free(f"{host}:{each}")
        return found[each]

    last = min(port + _SEARCHED, PORT_MAX - PORTS_BELOW - shards)
    wanted = ((first, *range(first + PORTS_BELOW, first + PORTS_BELOW + shards)) for first in range(port + 1, last))
    free = next((ports[0] for ports in wanted if all(map(is_free, ports))), None)
    return FolderRefused(
        address,
        f"another process listens there, where shard {shard.identity.shard} is to: a node takes its own port and, from "
        f"{PORTS_BELOW} above it on, one for each of {counted(shards, 'shard')}. "
        + ("Choose another address for --listen" if free is None else f"Start it with --listen {host}:{free}"),
    )
