"""What the registry says about a cluster: its shards, who serves them, and the map that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from eventstore.errors import Corrupt
from eventstore.records.cluster_map import ClusterMap, Shard
from eventstore_cluster.nodes.leader_changes import LeaderChange, leader_change
from eventstore_cluster.registry.failing import failing_text
from eventstore_cluster.registry.kept_keys import Kept
from eventstore_cluster.registry.node_keys import NODES, NodeKey, read_node
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replica_keys import works
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    FORMAT,
    LEADERS,
    SERVING,
    SHARDS,
    ClusterKey,
    ServingKey,
    ShardKey,
    read_cluster,
    read_leader,
    read_serving,
    read_shard,
    running_members,
)
from eventstore_cluster.replica.registry_state import Seat, ShardState, trouble_of

_REVISION_BITS: Final = 40


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one revision.

    Attributes:
        preparing: the shards that have no slots yet.
        leaders: the node that leads each shard.
        serving: where each shard takes commits.
        changes: why each shard has this leader, or none.
        running: the replicas of each shard whose processes have a lease.
    """

    revision: int
    cluster: ClusterKey
    shards: Mapping[int, ShardKey]
    preparing: Mapping[int, ShardKey]
    leaders: Mapping[int, str]
    serving: Mapping[int, ServingKey]
    nodes: Mapping[str, NodeKey]
    changes: Mapping[int, LeaderChange]
    running: Mapping[int, frozenset[Seat]]

    def unserved(self) -> list[int]:
        """Returns the shards that no process serves."""
        return [number for number in self.shards if number not in self.serving]

    def troubles(self) -> dict[int, str]:
        """Returns what an operator has to know of shards, by number: first the shards that are not served."""
        found = {number: (self._trouble(number), self.failing(number)) for number in (*self.unserved(), *self.serving)}
        return {number: "; ".join(filter(None, said)) for number, said in found.items() if any(said)}

    def failing(self, number: int) -> str | None:
        """Returns which replicas of a shard cannot run, since when and why; None if all can."""
        return failing_text(number, ((name, node.failing) for name, node in self.nodes.items()))

    def _trouble(self, number: int) -> str | None:
        state, running = self.shards[number].state, self.running.get(number, frozenset())
        if number not in self.serving:
            return f"no process serves it: {self._unserved_because(number, state, running)}"
        return trouble_of(state, state.in_sync & running)

    def _unserved_because(self, number: int, state: ShardState, running: frozenset[Seat]) -> str:
        leader, away = self.leaders.get(number), sorted(member.node for member in state.in_sync - running)
        if leader is not None:
            others = ", ".join(node for node in away if node != leader)
            return f"{leader} was elected" + (f" and waits for {others}" if others else "")
        change = self.changes.get(number)
        why = "it has no leader" if change is None or change.text is None else f"it has no leader ({change.text})"
        return why if state.in_sync & running else f"{why}, and of those in sync none runs: {', '.join(away)}"

    def held_up(self, format_: int) -> str | None:
        """Returns which nodes keep the cluster from this format, and why; None if none does."""
        keeping = {node for key in (*self.shards.values(), *self.preparing.values()) for node in key.state.replicas}
        older = sorted(name for name, node in self.nodes.items() if node.format < format_)
        said = [f"{name} runs {self.nodes[name].version}, which knows format {self.nodes[name].format}" for name in older]
        said += [f"{name} keeps replicas and does not run" for name in sorted(keeping.difference(self.nodes))]
        return "; ".join(said) or None

    def format_note(self) -> str | None:
        """Returns what an operator has to know of the cluster's format; None if it is the newest."""
        if self.cluster.format >= FORMAT:
            return None
        why = self.held_up(FORMAT)
        how = f"`eventstore cluster upgrade` raises it to {FORMAT}" if why is None else f"what holds up {FORMAT}: {why}"
        return f"The cluster has format {self.cluster.format}; {how}."

    def map(self) -> ClusterMap:
        """Returns the map of the cluster. Raises InvalidArgument: its slots are not whole."""
        shards = tuple(self._shard(number, key) for number, key in self.shards.items())
        generation = max(key.state.generation for key in self.shards.values())
        splits = tuple(sorted({split for key in self.shards.values() for split in key.lineage.splits}))
        version = (generation << _REVISION_BITS) + self.revision
        return ClusterMap(self.cluster.uuid.bytes, version, self.cluster.layout, shards, splits)

    def _shard(self, number: int, key: ShardKey) -> Shard:
        serving = self.serving.get(number)
        if serving is None:
            return Shard(number, key.store.bytes, key.slots, None, key.state.epoch)
        return Shard(number, key.store.bytes, key.slots, serving.address, serving.epoch)


def cluster_view(snapshot: RegistrySnapshot) -> ClusterView | None:
    """Returns the cluster; None if it has not been created.

    Raises:
        UnsupportedVersion: it has a format that this program does not know.
        Corrupt: something else wrote a key.
    """
    value = snapshot.value(CLUSTER)
    if value is None:
        return None
    found = {number: read_shard(number, snapshot.entries[f"{SHARDS}{number}"].value) for number in _numbers(snapshot)}
    shards = {number: key for number, key in found.items() if key.slots}
    if not shards:
        raise Corrupt(CLUSTER, 0, "the registry names a cluster without shards; restore etcd from a backup")
    leaders = {number: read_leader(snapshot.entries.get(f"{LEADERS}{number}")) for number in shards}
    return ClusterView(
        snapshot.revision,
        read_cluster(value),
        shards,
        {number: key for number, key in found.items() if not key.slots},
        {number: leader.member.node for number, leader in leaders.items() if leader is not None},
        _serving(snapshot, shards),
        nodes_of(snapshot),
        {number: leader_change(number, key.state.epoch, snapshot) for number, key in shards.items()},
        {number: running_members(number, snapshot) for number in shards},
    )


def kept_view(kept: Kept) -> ClusterView:
    """Returns the cluster as it was when its node kept it: without leaders, and not served."""
    shards = {number: each.key for number, each in sorted(kept.shards.items())}
    return ClusterView(0, kept.cluster, shards, {}, {}, {}, {}, {}, {})


def nodes_of(snapshot: RegistrySnapshot) -> dict[str, NodeKey]:
    """Returns the nodes that run, by name, in order. A replica that works by now is not reported as failing, although its node
    says so until it updates its key.

    Raises:
        Corrupt
    """
    names = sorted(key.removeprefix(NODES) for key in snapshot.entries if key.startswith(NODES))
    found = {name: read_node(name, snapshot.entries[NODES + name].value) for name in names}
    return {
        name: replace(node, failing=tuple(each for each in node.failing if not works(each.shard, name, snapshot)))
        for name, node in found.items()
    }


def newer_map(view: ClusterView, known: ClusterMap | None) -> ClusterMap | None:
    """Returns the map; None if it says the same as the known one."""
    found = view.map()
    return None if known is not None and replace(found, version=known.version) == known else found


def _numbers(snapshot: RegistrySnapshot) -> list[int]:
    found = [key.removeprefix(SHARDS) for key in snapshot.entries if key.startswith(SHARDS)]
    if unknown := [each for each in found if not each.isdecimal()]:
        raise Corrupt(f"{SHARDS}{unknown[0]}", 0, "not the number of a shard; nothing else may write in the registry")
    return sorted(map(int, found))


def _serving(snapshot: RegistrySnapshot, shards: Mapping[int, ShardKey]) -> dict[int, ServingKey]:
    """Returns who serves. What a leader of an older epoch left is gone with its lease, and means nothing until then."""
    written: dict[str, tuple[int, int]] = {}
    found: dict[int, ServingKey] = {}
    for number, shard in shards.items():
        entry = snapshot.entries.get(f"{SERVING}{number}")
        key = None if entry is None else read_serving(entry.value)
        if entry is None or key is None or key.epoch < shard.state.epoch:
            continue
        found[number] = key
        revision, other = written.setdefault(key.address, (entry.revision, number))
        if other != number:  # a dead process had this port, and its lease has not run out yet
            found.pop(number if revision > entry.revision else other)
            written[key.address] = max((revision, other), (entry.revision, number))
    return found
