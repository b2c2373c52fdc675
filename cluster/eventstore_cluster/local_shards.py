"""The shards of a cluster on one machine: as many processes as its folder has shards, and a map in its registry."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio

from eventstore.alarms.alarms import Alarms
from eventstore.chunks.documents import Tree
from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from eventstore.records.cluster_map import ClusterMap
from eventstore.server.access.security import Security
from eventstore.server.alarms.alarm_handlers import source_of
from eventstore.server.bootstrap import until
from eventstore.server.logs import get_logger
from eventstore.settings.server import ServerSettings
from eventstore_cluster.entry import free_addresses
from eventstore_cluster.node_folder import NodeFolder, open_checked_folder
from eventstore_cluster.processes.starter import ShardStarter
from eventstore_cluster.shard_folders import LEADER_KEYS, SHARD_KEYS, PlannedShard, check_folder, map_of
from eventstore_cluster.shard_runner import ShardRunner
from eventstore_cluster.shard_start import ShardStart, shard_values
from eventstore_cluster.supervisor import Node, bound

_RETRY_S: Final = 1.0
_log = get_logger("eventstore.cluster")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of a node on one machine.

    Attributes:
        values: the settings in `settings` as an operator writes them.
        shards: how many there must be; None: as many as there are.
    """

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
    with bound(settings) as listener:
        checked = partial(free_addresses, settings.listen, settings.http)
        folder, addresses = open_checked_folder(settings.data, options.shards, checked)
        with folder.registry:
            if changes := folder.changes():
                await folder.registry.transact({}, changes)
            shards = LocalShards(options, folder, addresses, listener)
            await Node(settings, listener, security, shards).run()


class LocalShards:
    """Implements `NodeShards` for the shards of one folder."""

    door = None

    def __init__(self, options: NodeOptions, folder: NodeFolder, addresses: Iterable[str], listener: socket.socket) -> None:
        self._options, self._folder = options, folder
        host, port = self.address = listener.getsockname()[:2]
        self.name, self.source = f"{host}:{port}", source_of(host, port)
        self._changed, self._told = trio.Event(), trio.Event()
        self._known = self._map()
        self._starter = ShardStarter()
        self.runners = [
            ShardRunner(
                shard.identity, self._starter, self._start_of(shard, address), self._note_change, partial(self._check, shard)
            )
            for shard, address in zip(folder.layout.shards, addresses, strict=True)
        ]

    def _map(self) -> ClusterMap:
        return map_of(self._folder.registry.state, self._folder.layout)

    def _start_of(self, shard: PlannedShard, address: str) -> Callable[[str | None], ShardStart]:
        values = shard_values(self._options.settings, self._options.values, shard.folder)
        return lambda last: ShardStart({**values, "listen": last or address}, shard.identity, self._known)

    def _check(self, shard: PlannedShard) -> None:
        """Refuses to start a shard whose folder is gone since: its process would create an empty one."""
        kept = self._folder.registry.state.value(f"{SHARD_KEYS}{shard.identity.shard}") or {}
        check_folder(replace(shard, created=kept.get("created") is True))

    def _note_change(self) -> None:
        self._changed.set()

    def unserved(self) -> list[int]:
        return [shard.identity.shard for shard in self.runners if not shard.serves]

    def trouble(self) -> str | None:
        return self._folder.registry.trouble

    def troubles(self) -> dict[int, str]:
        return {}

    def clock_trouble(self) -> None:
        return None

    def metric_lines(self) -> tuple[str, ...]:
        return ()

    def said(self) -> dict[str, object]:
        return {
            "cluster": str(self._folder.layout.cluster),
            "shards": len(self.runners),
            "serving": sum(shard.address is not None for shard in self.runners),
        }

    async def run(self, node: Node) -> None:
        """Same as `NodeShards.run`. If no shard could be started, or a setting is wrong, calls `node.fail` with the error of
        the first shard.
        """
        async with trio.open_nursery() as beside:
            await beside.start(self._starter.run)
            beside.start_soon(self._keep_map, node)
            async with trio.open_nursery() as nursery:
                for shard in self.runners:
                    nursery.start_soon(shard.run)
                async with until(node.stopping):
                    failed = await self._first_failure()
                    if failed is None:
                        node.ready.set()
                    else:
                        node.fail(failed)
                    await node.stopping.wait()
                for shard in self.runners:
                    shard.stop()
            beside.cancel_scope.cancel()

    async def _first_failure(self) -> EventStoreError | None:
        """Waits until each shard serves, as the map says then, or has failed once. Returns why the node cannot serve."""
        for shard in self.runners:
            await shard.settled.wait()
        while [shard.leader for shard in self._known.shards] != [shard.address for shard in self.runners]:
            await self._told.wait()
        errors = [shard.error for shard in self.runners if shard.error is not None]
        for error in errors:
            if isinstance(error, InvalidArgument | DomainRefused):  # wrong for all, and will be next time
                return error
        if len(errors) == len(self.runners):
            return errors[0]
        for shard in self.runners:
            if shard.error is not None:
                shard.log_end()
        return None

    # ---- the map

    async def _keep_map(self, node: Node) -> None:
        """Writes to the registry who serves, and publishes the map; until cancelled."""
        node.publish(self._known)
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if node.stopping.is_set():
                continue
            try:
                await self._write_leaders()
            except EventStoreError as error:
                _log.error("the map cannot be changed, and is tried again", error=error.message)
                await trio.sleep(_RETRY_S)
                self._changed.set()
                continue
            self._known = self._map()
            node.publish(self._known)
            for shard in self.runners:
                shard.tell_map()
            self._told.set()
            self._told = trio.Event()

    async def _write_leaders(self) -> None:
        registry, layout = self._folder.registry, self._folder.layout
        state = registry.state
        lasting: dict[str, Tree | None] = {}
        leased: dict[str, Tree | None] = {}
        for planned, shard in zip(layout.shards, self.runners, strict=True):
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
