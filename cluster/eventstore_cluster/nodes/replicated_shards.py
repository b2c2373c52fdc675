"""The shards of a node with replicas: registers the node, runs the replicas that the registry gives it, and publishes the map.

The registry is only read here, but for the node's own key: which replica leads and serves is written by its process. While
etcd is away, the node continues with what it knows.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import trio

from eventstore.errors import EventStoreError
from eventstore.records.cluster_map import ClusterMap
from eventstore.security.loopback import is_loopback
from eventstore.server.bootstrap import until
from eventstore.server.logs import get_logger
from eventstore_cluster.nodes.addresses import ports_said
from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view, kept_view, newer_map, nodes_of
from eventstore_cluster.nodes.first_read import first_read
from eventstore_cluster.nodes.leader_changes import LeaderChanges
from eventstore_cluster.nodes.node_file import NodeFile, node_file
from eventstore_cluster.nodes.options import ReplicatedOptions, check_durability, node_security
from eventstore_cluster.nodes.registration import Registration
from eventstore_cluster.nodes.replicas import NodeReplicas
from eventstore_cluster.nodes.visiting.cluster_door import NodeClusterDoor
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.failing import utc_text
from eventstore_cluster.registry.kept_keys import kept_of
from eventstore_cluster.registry.node_clocks import clock_trouble, clocks_apart
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.supervisor import Node, bound

_RETRY_S: Final = 1.0
_KEEP_AGAIN_S: Final = 60.0
_log = get_logger("eventstore.cluster")


async def supervise_replicas(options: ReplicatedOptions) -> None:
    """Serves the node's replicas until SIGTERM or SIGINT. Returns when all their processes have ended.

    Raises:
        FolderRefused, Corrupt: the folder or an address is refused.
        RegistryUnavailable, RegistryRefused: etcd cannot be asked.
        InvalidArgument, DomainRefused: a setting is wrong, or another node has the name.
    """
    settings = options.settings
    security = node_security(settings)
    with bound(settings) as listener, node_file(settings.data, options.name) as folder:
        async with Gateway(options.etcd) as gateway:
            shards = ReplicatedShards(options, folder, gateway, listener.getsockname()[1])
            await Node(settings, listener, security, shards, shards.uncreated).run()


class ReplicatedShards:
    """Implements `NodeShards`."""

    def __init__(self, options: ReplicatedOptions, folder: NodeFile, gateway: Gateway, port: int) -> None:
        """`port`: where the node listens."""
        self._options, self._folder = options, folder
        self._registry = EtcdRegistry(gateway, options.cluster)
        self.name, self.address = options.name, (options.host, port)
        self._address = f"{options.host}:{port}"
        self.source = f"{options.name}, {self._address}"
        self._node: Node | None = None
        self._replicas = NodeReplicas(options, folder, gateway, self._fail)
        self.runners = self._replicas.runners
        self._registration = Registration(gateway, self._registry, options, self._address, self._replicas.failing)
        self._unusable: str | None = None
        self._unusable_since: float | None = None
        self._warned = False
        self._view: ClusterView | None = None
        self._seen: RegistrySnapshot | None = None
        self.door = NodeClusterDoor(options.etcd, options.cluster, lambda: self._seen)
        self._known: ClusterMap | None = None
        self._changes = LeaderChanges(options.name)
        self.metric_lines = self._changes.lines
        self._lost = False
        self._heard, self._kept_changed = trio.Event(), trio.Event()
        self._kept = folder.kept
        self.uncreated = f"the cluster {options.cluster} has not been created: eventstore cluster create"
        if folder.cluster is not None:
            self.uncreated = folder.without_cluster(options.cluster)

    async def run(self, node: Node) -> None:
        self._node = node
        async with trio.open_nursery() as beside:
            seen: RegistrySnapshot | None = None
            async with until(node.stopping):
                try:
                    seen = await self._begin()
                except EventStoreError as error:
                    node.fail(error)
            if seen is not None and not node.stopping.is_set():
                beside.start_soon(self._registration.keep)
                beside.start_soon(self._watch, seen)
                beside.start_soon(self._keep)
                node.ready.set()
                await self._replicas.run(node.stopping)
            beside.cancel_scope.cancel()
        await self._registration.give_up()

    async def _begin(self) -> RegistrySnapshot:
        """Reads the registry and registers the node."""
        seen = await first_read(self._registry, waits=_note_waiting)
        view = cluster_view(seen)
        if view is not None:
            check_durability(self._options.settings, view.cluster.replicas)
        else:
            self._folder.refuse_without_cluster(self._options.cluster)
        await self._registration.take(seen)
        self._apply(seen)
        return seen

    def said(self) -> dict[str, object]:
        options = self._options
        return {"cluster": options.cluster, "node": options.name, "shards_listen": ports_said(options.settings.listen)}

    def _fail(self, error: EventStoreError) -> None:
        assert self._node is not None
        self._node.fail(error)

    # ---- the registry

    async def _watch(self, seen: RegistrySnapshot) -> None:
        """Does what the registry says, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._registry.watch, lambda: seen.revision, lambda: self._heard.set())
            while True:
                try:
                    if self._unusable is None:
                        await self._heard.wait()
                    self._heard = trio.Event()
                    latest = await self._registry.read()
                    if self._unusable is not None or latest.entries != seen.entries:
                        self._apply(latest)
                        await self._registration.offer(latest, self._folder.kept if self._lost else None)
                        self._note_usable()
                    seen = latest
                except EventStoreError as error:
                    self._note_unusable(error.message)
                    await trio.sleep(_RETRY_S)

    def _note_unusable(self, why: str) -> None:
        if self._unusable is None:
            _log.warning("the registry cannot be used, and the node continues with what it knows", error=why)
        self._unusable_since = self._unusable_since or time.time()
        self._unusable = why

    def _note_usable(self) -> None:
        if self._unusable is not None:
            _log.info("the registry can be used again")
        self._unusable = self._unusable_since = None

    def _apply(self, seen: RegistrySnapshot) -> None:
        """Takes what the registry says. Raises Corrupt or InvalidArgument if it makes no cluster."""
        self._warn_of_loopback(seen)
        self._seen = seen
        view = cluster_view(seen)
        if view is None:
            self._note_lost()
            return
        newer = newer_map(view, self._known)
        try:
            check_durability(self._options.settings, view.cluster.replicas)
            self._folder.take(view.cluster.uuid)
        except EventStoreError as error:
            self._fail(error)
            return
        self._view, self._lost = view, False
        self._kept = kept_of(view.cluster, view.shards, seen).newest(self._kept)
        self._kept_changed.set()
        self._changes.saw(view.changes)
        if newer is not None:
            self._known = newer
            self._replicas.publish(newer)
            assert self._node is not None
            self._node.publish(newer)
        self._replicas.want(view)

    def _note_lost(self) -> None:
        """Has the replicas run that the folder has, if etcd does not know their cluster: so they say how their logs end."""
        if self._folder.cluster is None or self._lost:
            return
        self._lost = True
        _log.error("etcd has lost the cluster", error=self._folder.without_cluster(self._options.cluster))
        if self._kept is not None:  # which is later than what an etcd said that was restored from an older copy
            found = kept_view(self._kept)
            if self._view is None:
                check_durability(self._options.settings, found.cluster.replicas)
                self._replicas.publish(found.map())
            shards = {number: key for number, key in found.shards.items() if self._folder.has_replica(number)}
            self._replicas.want(replace(found, shards=shards))

    async def _keep(self) -> None:
        """Writes what the registry says into the folder, whenever it has changed; until cancelled."""
        while True:
            await self._kept_changed.wait()
            self._kept_changed = trio.Event()
            assert self._kept is not None
            try:
                await trio.to_thread.run_sync(self._folder.keep, self._kept)
            except (EventStoreError, OSError) as error:
                _log.warning("what the registry says is not kept, which is tried again", error=str(error))
                await trio.sleep(_KEEP_AGAIN_S)
                self._kept_changed.set()

    def _warn_of_loopback(self, seen: RegistrySnapshot) -> None:
        others = [node.address for name, node in nodes_of(seen).items() if name != self._options.name]
        outside = [each for each in others if not is_loopback(each.rpartition(":")[0])]
        if outside and is_loopback(self._options.host) and not self._warned:
            self._warned = True
            _log.warning(
                "other nodes cannot reach this one: name an address of this machine with --listen",
                address=self._address,
                other=outside[0],
            )

    def trouble(self) -> str | None:
        """Returns what keeps the node from its work: the processes have theirs because of it."""
        if self._unusable is not None and self._unusable_since is not None:
            return f"the registry cannot be used since {utc_text(self._unusable_since)}: {self._unusable}"
        if self._registration.lost is not None:
            return self._registration.lost
        if self._lost:
            return self._folder.without_cluster(self._options.cluster)
        if self._view is None:
            return self.uncreated
        return None if self._kept is None else self._kept.unknown_to(self._view.shards)

    def unserved(self) -> list[int]:
        return [] if self._view is None else self._view.unserved()

    def troubles(self) -> dict[int, str]:
        return {} if self._view is None or self._unusable is not None else self._view.troubles()

    def clock_trouble(self) -> str | None:
        found = {} if self._view is None else clocks_apart(self._view.nodes)
        return clock_trouble(found | self._registration.clock_apart())


def _note_waiting(why: str) -> None:
    _log.warning("waiting for etcd", error=why)
