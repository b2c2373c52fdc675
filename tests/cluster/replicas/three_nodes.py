"""Three nodes of a cluster with replicas, each a process with its shards, over a real etcd."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from eventstore.client.blocking.store import BlockingStore, connect
from eventstore_cluster.nodes.creation import create_cluster
from eventstore_cluster.registry.replica_keys import running_replicas
from eventstore_cluster.registry.replicated_keys import read_leader, read_serving, read_shard
from eventstore_cluster.replica.registry_state import ShardState
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.node_process import children, kill_process
from tests.cluster.nodes.named_node import NamedNode, keys, registry_of
from tests.private_files import open_to_others
from tests.waiting import DEADLINE_SECONDS, wait_until

NAMES = ("n1", "n2", "n3")
LEASE_S = 4


class ThreeNodes:
    """`nodes`: those that run, by name."""

    def __init__(self, folder: Path, etcd: Etcd, cluster: str, *, shards: int = 1, replicas: int = 3, **settings: Any) -> None:
        self.folder, self._etcd, self._cluster = folder, etcd, cluster
        self._settings = settings
        self.nodes: dict[str, NamedNode] = {}
        self.shards = shards
        try:
            for name in NAMES:
                self.start(name)
            trio.run(self._create, shards, replicas)
            self.wait_until_in_sync()
        except BaseException:
            self.close()
            raise

    async def _create(self, shards: int, replicas: int) -> None:
        async with registry_of(self._etcd, self._cluster) as (_, registry):
            await create_cluster(registry, shards, replicas, wait_s=DEADLINE_SECONDS)  # a lease of a busy machine may run out

    def start(self, name: str) -> NamedNode:
        options = ("--lease", str(LEASE_S))
        node = self.nodes[name] = NamedNode(
            self.folder, name, self._etcd.url, self._cluster, options=options, **self._settings
        )  # fmt: skip
        return node

    def kill(self, name: str) -> None:
        """Ends the node and its shards, as a power cut does."""
        self.nodes.pop(name).kill()

    def stop(self, name: str) -> None:
        assert self.nodes.pop(name).terminate() == 0

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(self.folder / name)

    def leader(self, shard: int = 0) -> str:
        """Returns the node that leads, once one serves."""
        found: list[str] = []

        def serves() -> bool:
            snapshot = keys(self._etcd, self._cluster)
            leader, serving = (
                read_leader(snapshot.entries.get(f"leader/{shard}")),
                read_serving(snapshot.value(f"serving/{shard}")),
            )
            found[:] = [] if leader is None or serving is None else [leader.member.node]
            return bool(found)

        wait_until(serves, f"shard {shard} has a leader")
        return found[0]

    def followers(self, shard: int = 0) -> list[str]:
        return [name for name in NAMES if name != self.leader(shard)]

    def state(self, shard: int = 0) -> ShardState:
        return read_shard(shard, keys(self._etcd, self._cluster).value(f"shard/{shard}") or {}).state

    def running(self, shard: int = 0) -> set[str]:
        """Returns the nodes on which a process of the shard's replica has a lease."""
        return set(running_replicas(shard, keys(self._etcd, self._cluster)))

    def wait_until_in_sync(self, *names: str) -> None:
        """Waits until each shard is served, and the replicas of these nodes are in sync; of all, if none is named."""
        wanted = set(names or NAMES)

        def in_sync() -> bool:
            snapshot = keys(self._etcd, self._cluster)
            states = [read_shard(shard, snapshot.value(f"shard/{shard}") or {}).state for shard in range(self.shards)]
            running = {
                (shard, name): (snapshot.value(f"replica/{shard}/{name}") or {}).get("incarnation")
                for shard in range(self.shards)
                for name in wanted
            }
            return all(
                read_serving(snapshot.value(f"serving/{shard}")) is not None
                and all(
                    running[shard, name] in {member.incarnation for member in state.in_sync}
                    for name in wanted.intersection(state.replicas)
                )
                for shard, state in enumerate(states)
            )

        wait_until(in_sync, f"{', '.join(sorted(wanted))} are in sync")

    def shard_pid(self, name: str, shard: int = 0) -> int:
        health = next(each for each in self.nodes[name].health()["shards"] if each["shard"] == shard)
        return int(health["pid"])

    @contextmanager
    def paused(self, name: str, shard: int = 0) -> Iterator[None]:
        """Stops the process of a replica for as long as the block runs."""
        pid = self.shard_pid(name, shard)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def hung(self, name: str) -> Iterator[None]:
        """Stops all processes of a node for as long as the block runs, as a machine that hangs."""
        node = self.nodes[name]
        pids = [node.pid, *children(node.pid), *node.shard_pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def kill_shard(self, name: str, shard: int = 0) -> None:
        kill_process(self.shard_pid(name, shard))

    def addresses(self, names: Sequence[str] | None = None) -> str:
        return ",".join(self.nodes[name].address for name in names or self.nodes)

    def client(self, names: Sequence[str] | None = None, **options: Any) -> BlockingStore:
        """Returns a client of these nodes, of all that run if none are named; to be used in a `with`."""
        return connect(self.addresses(names), reconnect_timeout=30.0, **options)

    def close(self) -> None:
        with ExitStack() as stack:
            for node in self.nodes.values():
                stack.callback(node.kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if kind is None:  # whatever the test had them do: clone, fetch, move, put away
            folders = [self.folder / name for name in NAMES if (self.folder / name).exists()]
            assert [each for folder in folders for each in open_to_others(folder)] == []
