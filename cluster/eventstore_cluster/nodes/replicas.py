"""The replicas of a node: runs a process for each shard that the registry gives the node, and puts the folders of other shards
away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from eventstore.records.cluster_map import ClusterMap
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster.nodes.addresses import check_http, replica_addresses
from eventstore_cluster.nodes.cluster_view import ClusterView
from eventstore_cluster.nodes.leader_changes import say_left
from eventstore_cluster.nodes.leaving import Leaving
from eventstore_cluster.nodes.node_file import NodeFile
from eventstore_cluster.nodes.options import ReplicatedOptions
from eventstore_cluster.nodes.registration import revoke
from eventstore_cluster.processes.starter import ShardStarter
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.failing import Failing
from eventstore_cluster.registry.replicated_keys import LeftKey
from eventstore_cluster.shard_folders import PlannedShard, check_folder
from eventstore_cluster.shard_runner import LeaderEnded, ShardRunner
from eventstore_cluster.shard_start import ReplicaStart, ShardStart, shard_values

_PROGRAM: Final = "eventstore_cluster.replica_process"
_LOADS: Final = ("httpcore",)
"""What each replica needs once it speaks to etcd."""
_SAY_S: Final = 0.5
_FAILING_S: Final = 3.0
"""A process that ends and is started again takes less."""


class NodeReplicas:
    """Starts and stops the processes of replicas.

    `refused` is called when a first start shows a wrong setting.

    Attributes:
        runners: of the replicas, also of replicas that still stop.
    """

    def __init__(
        self, options: ReplicatedOptions, folder: NodeFile, gateway: Gateway, refused: Callable[[EventStoreError], None]
    ) -> None:
        self._options, self._folder, self._gateway, self._refused = options, folder, gateway, refused
        self._values = shard_values(
            options.settings, options.values, options.settings.data
        )  # with the list of the node's start
        self.runners: list[ShardRunner] = []
        self._starter = ShardStarter(_PROGRAM, _LOADS)
        self._known: ClusterMap | None = None
        self._registry = EtcdRegistry(gateway, options.cluster)
        self._wanted: dict[int, ShardIdentity] = {}
        self._parents: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._changed = trio.Event()
        self._served = False
        self._leaving = Leaving(options, self._registry, lambda shard: shard in self._wanted, self._changed_now)

    def want(self, view: ClusterView) -> None:
        """Has a process run for each shard that names this node, and the others stop."""
        cluster, keys = view.cluster.uuid, {**view.shards, **view.preparing}
        own = {number: key for number, key in keys.items() if self._options.name in key.state.replicas}
        self._wanted = {number: key.identity(cluster, number) for number, key in own.items()}
        self._parents = {number: key.lineage.birth.parent for number, key in own.items() if key.lineage.birth is not None}
        self._epochs = {number: key.state.epoch for number, key in view.shards.items()}
        self._changed.set()

    def _changed_now(self) -> None:
        self._changed.set()

    def failing(self) -> tuple[Failing, ...]:
        """Returns the replicas that have not run for a while, and why."""
        late = time.time() - _FAILING_S
        return tuple(
            Failing(each.identity.shard, each.failing_since, each.error.message)
            for each in self.runners
            if each.failing_since is not None and each.failing_since < late and each.error is not None
        )

    def publish(self, known: ClusterMap) -> None:
        """Tells the map to all processes, and to processes that are started later."""
        self._known = known
        for runner in self.runners:
            runner.tell_map()

    async def run(self, stopping: trio.Event) -> None:
        """Runs the processes until `stopping`, then stops them; returns when all have ended."""
        async with trio.open_nursery() as beside:
            await beside.start(self._starter.run)
            async with trio.open_nursery() as nursery:
                async with trio.open_nursery() as until_stopped:
                    until_stopped.start_soon(self._follow, nursery)
                    until_stopped.start_soon(self._leaving.run)
                    await stopping.wait()
                    until_stopped.cancel_scope.cancel()
                for runner in self.runners:
                    runner.stop()
            beside.cancel_scope.cancel()

    async def _follow(self, nursery: trio.Nursery) -> None:
        while True:
            running = {runner.identity.shard: runner for runner in self.runners}
            for number, runner in running.items():
                wanted = self._wanted.get(number)
                if wanted is None or wanted.store != runner.identity.store:
                    runner.stop()
                else:
                    runner.identity = wanted  # the process itself follows a split
            for number, identity in self._wanted.items():
                if number not in running and number not in self._leaving.shards:
                    nursery.start_soon(self._run, self._added(identity))
            self._leaving.look({*self._wanted, *running})
            await self._changed.wait()
            self._changed = trio.Event()

    def _added(self, identity: ShardIdentity) -> ShardRunner:
        start, check = partial(self._start, identity), partial(self._check, identity)
        reaped = partial(self._reaped, identity.shard)
        runner = ShardRunner(identity, self._starter, start, self._note_change, check, reaped)
        self.runners.append(runner)
        self.runners.sort(key=lambda each: each.identity.shard)
        return runner

    async def _run(self, runner: ShardRunner) -> None:
        """Runs a replica to its end; only then may another one of its shard be started."""
        await runner.run()
        if not runner.identity.slots and runner.identity.shard not in self._wanted:  # its split was called off
            await trio.to_thread.run_sync(self._folder.remove_clone, runner.identity.shard)
        self.runners.remove(runner)
        self._changed.set()

    def _start(self, first: ShardIdentity, last: str | None) -> ShardStart:
        options, shard = self._options, first.shard
        identity = self._wanted.get(shard, first)
        assert self._known is not None
        clients, peers = replica_addresses(options.settings.listen, shard)
        if last is not None:  # where the last one said that it is reached, which need not be what it listened on
            clients = f"{clients.rpartition(':')[0]}:{last.rpartition(':')[2]}"
        values = {**self._values, "data": str(self._folder.folder(shard)), "listen": clients}
        replica = ReplicaStart(
            options.cluster,
            options.etcd,
            options.name,
            peers,
            options.lease_s,
            host=options.host,
            known=self._folder.known(shard),
            parent=self._parents.get(shard),
        )
        return ShardStart(values, identity, self._known, replica)

    def _check(self, first: ShardIdentity) -> None:
        """Refuses a folder of another shard. If the folder is missing, the process makes it again, as a stranger to the set."""
        identity, settings = self._wanted.get(first.shard, first), self._options.settings
        replica_addresses(settings.listen, identity.shard)
        check_http(settings.http, settings.listen, identity.shard)
        check_folder(PlannedShard(identity, self._folder.folder(identity.shard), created=False))

    async def _reaped(self, shard: int, lease: int, led: LeaderEnded | None) -> None:
        if led is not None and led.epoch == self._epochs.get(shard):  # otherwise another leads, for a reason of its own
            with trio.move_on_after(_SAY_S):  # clients wait for the lease
                await say_left(self._registry, shard, LeftKey(led.epoch, self._options.name, led.reason))
        await revoke(self._gateway, Lease(lease, self._options.lease_s, 0.0))

    def _note_change(self) -> None:
        """Refuses the start of the node if the first process finds a setting wrong: it would be for all, and next time."""
        self._served = self._served or any(runner.address is not None for runner in self.runners)
        for runner in self.runners:
            if not self._served and runner.starts <= 1 and isinstance(runner.error, InvalidArgument | DomainRefused):
                self._refused(runner.error)
