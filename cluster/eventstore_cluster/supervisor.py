"""A node: runs the processes of its shards, tells clients which process serves which shard, and stops all of them in order.

It does nothing on the way of data: clients talk to the shards. `NodeShards` decides which shards there are, and where the map
comes from. `local_shards` implements it for one machine, `nodes.replicated_shards` for shards with replicas.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol

import trio

from eventstore import __version__
from eventstore.alarms.alarms import Alarms
from eventstore.console.subject import ClusterDoor
from eventstore.errors import EventStoreError
from eventstore.records.cluster_map import ClusterMap
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import bind, gate_limits, listen, raise_descriptor_limit, stop_on_signals, until
from eventstore.server.console_subject import check_http_api, console_subject
from eventstore.server.http import http_server
from eventstore.server.logs import get_logger
from eventstore.settings.server import ServerSettings
from eventstore_cluster.entry import ClusterEntry
from eventstore_cluster.node_alarms import NodeAlarms
from eventstore_cluster.node_reports import NodeReports, OnThreads
from eventstore_cluster.shard_runner import ShardRunner

_log = get_logger("eventstore.cluster")


class NodeShards(Protocol):
    """The shards of a node, and what it knows of the rest of its cluster."""

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def source(self) -> str:
        """Who raises an alarm."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port by which clients reach the node."""

    @property
    def runners(self) -> Sequence[ShardRunner]:
        """The processes, also processes that still stop."""

    @property
    def door(self) -> ClusterDoor | None:
        """What the console may do to the cluster."""

    def unserved(self) -> Sequence[int]:
        """Returns the shards of the cluster that no process serves."""

    def trouble(self) -> str | None:
        """Returns what keeps the node from its work; it comes before the troubles of shards."""

    def troubles(self) -> Mapping[int, str]:
        """Returns what is known of shards besides what their processes say, wherever they run."""

    def clock_trouble(self) -> str | None:
        """Returns what needs attention after all shards."""

    def metric_lines(self) -> Iterable[str]:
        """Returns lines for /metrics."""

    def said(self) -> Mapping[str, object]:
        """Returns the fields that the log has when the node begins to serve."""

    async def run(self, node: Node) -> None:
        """Runs the processes until `node.stopping`, and returns when all have ended.

        Sets `node.ready` once clients may come. Calls `node.fail` if they never can.
        """


class Node:
    """Runs a node. Until there is a map, clients are told `closed`: why there is none, and the next step."""

    def __init__(
        self, settings: ServerSettings, listener: socket.socket, security: Security, shards: NodeShards, closed: str = ""
    ) -> None:
        self._settings, self._listener, self._security, self._shards = settings, listener, security, shards
        self.stopping, self.ready = trio.Event(), trio.Event()
        self._ended = trio.Event()
        self._failed: EventStoreError | None = None
        self._alarms = NodeAlarms(Alarms(settings.alarms), settings.data, shards.unserved, security.tls)
        self._reports = NodeReports(
            shards.runners,
            self.stopping.is_set,
            shards.trouble,
            shards.troubles,
            shards.clock_trouble,
            shards.metric_lines,
            self._alarms,
        )
        self._entry = ClusterEntry(
            listener,
            gate_limits(settings),
            self._reports.stats,
            closed=closed,
            security=security,
            alarms=self._alarms.alarms,
        )

    def publish(self, newer: ClusterMap) -> None:
        """Tells clients a newer map; an older one is ignored."""
        self._entry.publish(newer)

    def fail(self, error: EventStoreError) -> None:
        """Stops the node in order; `run` raises the first error."""
        self._failed = self._failed or error
        self.stopping.set()

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT, and until all processes have ended. Raises the error that kept it from serving."""
        async with trio.open_nursery() as beside:
            await beside.start(stop_on_signals, self.stopping, self._security.reload)
            beside.start_soon(self._security.run)
            beside.start_soon(self._alarms.run, f"node {self._shards.source}")
            beside.start_soon(self._run_shards)
            async with until(self.stopping):
                await self.ready.wait()
            if not self.stopping.is_set():
                await self._serve(beside)
            await self._ended.wait()
            beside.cancel_scope.cancel()
        if self._failed is not None:
            raise self._failed
        _log.info("stopped")

    async def _run_shards(self) -> None:
        await self._shards.run(self)
        self._ended.set()

    async def _serve(self, beside: trio.Nursery) -> None:
        reports = OnThreads(self._reports, trio.lowlevel.current_trio_token())
        console = console_subject(
            self._settings,
            self._security,
            self._shards.address,
            reports.health,
            self._shards.name,
            to_self=False,
            cluster=self._shards.door,
        )
        try:
            http = self._settings.http
            served = None if http is None else http_server(http, reports.metrics, reports.health, self._security, console)
            with nullcontext() if served is None else served as http_address:
                listen(self._listener, self._settings.listen)
                await beside.start(self._entry.run)
                self._say_serving(http_address)
                await self.stopping.wait()
                _log.info("stopping", shards=len(self._shards.runners))
                self._entry.say_goodbye()
                await self._ended.wait()
        except EventStoreError as error:  # another process listens there by now
            self.fail(error)

    def _say_serving(self, http_address: str | None) -> None:
        host, port = self._shards.address
        _log.info(
            "the node serves",
            version=__version__,
            address=f"{self._security.scheme}://{host}:{port}",
            http=http_address,
            data=str(self._settings.data),
            **self._shards.said(),
            pid=os.getpid(),
        )


@contextmanager
def bound(settings: ServerSettings) -> Iterator[socket.socket]:
    """Binds the address of the node, so that a taken address is refused before anything is changed.

    Raises:
        FolderRefused: an address is taken.
        InvalidArgument: the HTTP API is switched on and cannot be served.
    """
    check_http_api(settings)
    raise_descriptor_limit()
    if settings.http is not None:
        bind(settings.http, "http").close()
    with bind(settings.listen) as listener:
        yield listener
