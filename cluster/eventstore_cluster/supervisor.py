"""Supervises the shards of a node: starts their processes, publishes which process serves what, and stops them in order.

It does nothing on the way of data: clients talk to the shards.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio

from eventstore import __version__
from eventstore.alarms.alarms import Alarms
from eventstore.chunks.documents import Tree
from eventstore.console.subject import Subject
from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from eventstore.records.cluster_map import ClusterMap
from eventstore.server.access.security import Security
from eventstore.server.alarms.alarm_handlers import source_of
from eventstore.server.bootstrap import (
    bind,
    gate_limits,
    listen,
    raise_descriptor_limit,
    stop_on_signals,
    until,
)
from eventstore.server.console_subject import console_subject
from eventstore.server.http import http_server
from eventstore.settings.server import ServerSettings
from eventstore_cluster.entry import ClusterEntry, free_addresses
from eventstore_cluster.log_lines import log
from eventstore_cluster.node_alarms import NodeAlarms
from eventstore_cluster.node_folder import NodeFolder, open_checked_folder
from eventstore_cluster.node_reports import NodeReports, OnThreads
from eventstore_cluster.processes.starter import ShardStarter
from eventstore_cluster.shard_folders import LEADER_KEYS, SHARD_KEYS, PlannedShard, check_folder, map_of
from eventstore_cluster.shard_runner import ShardRunner
from eventstore_cluster.shard_start import ShardStart, shard_values

_RETRY_S: Final = 1.0
_log = logging.getLogger("eventstore.cluster")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`values`: the settings of `settings` as an operator writes them. `shards`: how many there must be, None: as there are."""

    settings: ServerSettings
    values: Mapping[str, object]
    shards: int | None


async def supervise(options: NodeOptions) -> None:
    """Serves the shards of a folder until SIGTERM or SIGINT. Returns when all their processes have ended.

    Raises:
        FolderRefused, Corrupt: the folder or an address is refused; nothing was changed.
        InvalidArgument, DomainRefused: a setting is wrong.
        EventStoreError: no shard could be started: the error of the first.
    """
    settings = options.settings
    security = Security(settings)
    Alarms(settings.alarms)  # to name what is wrong before the folder is made
    raise_descriptor_limit()
    if settings.http is not None:
        bind(settings.http, "http").close()
    with bind(settings.listen) as listener:
        checked = partial(free_addresses, settings.listen, settings.http)
        folder, addresses = open_checked_folder(settings.data, options.shards, checked)
        with folder.registry:
            if changes := folder.changes():
                await folder.registry.transact({}, changes)
            await _Node(options, folder, addresses, listener, security).run()
    log(_log, logging.INFO, "stopped")


class _Node:
    def __init__(
        self, options: NodeOptions, folder: NodeFolder, addresses: Iterable[str], listener: socket.socket, security: Security
    ) -> None:
        self._options, self._folder, self._listener, self._security = options, folder, listener, security
        self._changed, self._told, self._stopping = trio.Event(), trio.Event(), trio.Event()
        self._known = self._map()
        self._starter = ShardStarter()
        self._shards = [
            ShardRunner(
                shard.identity, self._starter, self._start_of(shard, address), self._note_change, partial(self._check, shard)
            )
            for shard, address in zip(folder.layout.shards, addresses, strict=True)
        ]
        settings = options.settings
        self._alarms = NodeAlarms(Alarms(settings.alarms), settings.data, self._unserved, security.tls)
        self._reports = NodeReports(self._shards, self._stopping.is_set, lambda: folder.registry.trouble, alarms=self._alarms)
        self._entry = ClusterEntry(
            listener,
            gate_limits(settings),
            self._reports.stats,
            self._known,
            security=security,
            alarms=self._alarms.alarms,
        )

    def _map(self) -> ClusterMap:
        return map_of(self._folder.registry.read(), self._folder.layout)

    def _start_of(self, shard: PlannedShard, address: str) -> Callable[[str | None], ShardStart]:
        values = shard_values(self._options.settings, self._options.values, shard.folder)
        return lambda last: ShardStart({**values, "listen": last or address}, shard.identity, self._known)

    def _check(self, shard: PlannedShard) -> None:
        """Refuses to start a shard whose folder is gone since: its process would create an empty one."""
        kept = self._folder.registry.read().value(f"{SHARD_KEYS}{shard.identity.shard}") or {}
        check_folder(replace(shard, created=kept.get("created") is True))

    def _unserved(self) -> list[int]:
        return [shard.identity.shard for shard in self._shards if not shard.serves]

    def _note_change(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Serves until a signal. Raises the error of the first shard if none could be started, or a setting is wrong."""
        settings, token = self._options.settings, trio.lowlevel.current_trio_token()
        reports = OnThreads(self._reports, token)
        async with trio.open_nursery() as beside:
            await beside.start(stop_on_signals, self._stopping, self._security.reload)
            await beside.start(self._starter.run)
            beside.start_soon(self._security.run)
            beside.start_soon(self._keep_map)
            host, port = self._listener.getsockname()[:2]
            beside.start_soon(self._alarms.run, f"node {source_of(host, port)}")
            async with trio.open_nursery() as nursery:
                for shard in self._shards:
                    nursery.start_soon(shard.run)
                failed = await self._first_failure()
                if failed is None and not self._stopping.is_set():
                    try:
                        with http_server(
                            settings.http, reports.metrics, reports.health, self._security, self._console(reports)
                        ) as http_address:
                            listen(self._listener, settings.listen)
                            await beside.start(self._entry.run)
                            self._say_serving(http_address)
                            await self._stopping.wait()
                            log(_log, logging.INFO, "stopping", shards=len(self._shards))
                            self._entry.say_goodbye()
                    except EventStoreError as error:  # another process listens there by now
                        failed = error
                self._stopping.set()
                for shard in self._shards:
                    shard.stop()
            beside.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def _console(self, reports: OnThreads) -> Subject | None:
        settings, (host, port) = self._options.settings, self._listener.getsockname()[:2]
        return console_subject(settings, self._security, (host, port), reports.health, f"{host}:{port}", to_self=False)

    async def _first_failure(self) -> EventStoreError | None:
        """Waits until each shard serves, as the map says then, or has failed once. Returns why the node cannot serve."""
        async with until(self._stopping):
            for shard in self._shards:
                await shard.settled.wait()
            while [shard.leader for shard in self._known.shards] != [shard.address for shard in self._shards]:
                await self._told.wait()
        if self._stopping.is_set():
            return None
        errors = [shard.error for shard in self._shards if shard.error is not None]
        for error in errors:
            if isinstance(error, InvalidArgument | DomainRefused):  # wrong for all, and will be next time
                return error
        if len(errors) == len(self._shards):
            return errors[0]
        for shard in self._shards:
            if shard.error is not None:
                shard.log_end()
        return None

    def _say_serving(self, http_address: str | None) -> None:
        host, port = self._listener.getsockname()[:2]
        log(
            _log,
            logging.INFO,
            "the node serves",
            version=__version__,
            address=f"{self._security.scheme}://{host}:{port}",
            http=http_address,
            data=str(self._options.settings.data),
            cluster=str(self._folder.layout.cluster),
            shards=len(self._shards),
            serving=sum(shard.address is not None for shard in self._shards),
            pid=os.getpid(),
        )

    # ---- the map

    async def _keep_map(self) -> None:
        """Writes to the registry who serves, and publishes the map; until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if self._stopping.is_set():
                continue
            try:
                await self._write_leaders()
            except EventStoreError as error:
                log(_log, logging.ERROR, "the map cannot be changed, and is tried again", error=error.message)
                await trio.sleep(_RETRY_S)
                self._changed.set()
                continue
            self._known = self._map()
            self._entry.publish(self._known)
            for shard in self._shards:
                shard.tell_map()
            self._told.set()
            self._told = trio.Event()

    async def _write_leaders(self) -> None:
        registry, layout = self._folder.registry, self._folder.layout
        state = registry.read()
        lasting: dict[str, Tree | None] = {}
        leased: dict[str, Tree | None] = {}
        for planned, shard in zip(layout.shards, self._shards, strict=True):
            number = planned.identity.shard
            leader: Tree | None = None if shard.address is None else {"address": shard.address, "epoch": 1, "pid": shard.pid}
            if state.value(key := f"{LEADER_KEYS}{number}") != leader:
                leased[key] = leader
            created = replace(planned, created=True).value()
            if shard.address is not None and state.value(key := f"{SHARD_KEYS}{number}") != created:
                lasting[key] = created
        if lasting:
            await registry.transact({}, lasting)
        if leased:
            await registry.transact({}, leased, leased=True)
