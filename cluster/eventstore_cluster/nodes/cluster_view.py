"""What the registry says about a cluster: its shards, who serves them, and the map that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from eventstore.errors import Corrupt
from eventstore.records.cluster_map import ClusterMap, Shard
from eventstore_cluster.nodes.leader_changes import LeaderChange, leader_change
from eventstore_cluster.registry.kept_keys import Kept
from eventstore_cluster.registry.registry import Snapshot
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    NODES,
    SERVING,
    SHARDS,
    ClusterKey,
    NodeKey,
    ServingKey,
    ShardKey,
    read_cluster,
    read_leader,
    read_node,
    read_serving,
    read_shard,
)

_REVISION_BITS: Final = 40


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one revision. `leaders`: the node that leads each shard; `serving`: where it takes commits; `changes`: why
    it has this leader, or none.
    """

    revision: int
    cluster: ClusterKey
    shards: Mapping[int, ShardKey]
    leaders: Mapping[int, str]
    serving: Mapping[int, ServingKey]
    nodes: Mapping[str, NodeKey]
    changes: Mapping[int, LeaderChange]

    def unserved(self) -> list[int]:
        """Returns the shards that nobody serves."""
        return [number for number in self.shards if number not in self.serving]

    def map(self) -> ClusterMap:
        """Returns the map of the cluster. Raises InvalidArgument: its slots are not whole."""
        shards = tuple(self._shard(number, key) for number, key in self.shards.items())
        generation = max(key.state.generation for key in self.shards.values())
        return ClusterMap(self.cluster.uuid.bytes, (generation << _REVISION_BITS) + self.revision, self.cluster.layout, shards)

    def _shard(self, number: int, key: ShardKey) -> Shard:
        serving = self.serving.get(number)
        if serving is None:
            return Shard(number, key.store.bytes, key.slots, None, key.state.epoch)
        return Shard(number, key.store.bytes, key.slots, serving.address, serving.epoch)


def cluster_view(snapshot: Snapshot) -> ClusterView | None:
    """Returns the cluster; None if it has not been created.

    Raises:
        UnsupportedVersion: it has a format that this program does not know.
        Corrupt: something else wrote a key.
    """
    value = snapshot.value(CLUSTER)
    if value is None:
        return None
    shards = {number: read_shard(number, snapshot.entries[f"{SHARDS}{number}"].value) for number in _numbers(snapshot)}
    if not shards:
        raise Corrupt(CLUSTER, 0, "the registry names a cluster without shards; restore etcd from a backup")
    leaders = {number: read_leader(snapshot.entries.get(f"{LEADERS}{number}")) for number in shards}
    return ClusterView(
        snapshot.revision,
        read_cluster(value),
        shards,
        {number: leader.member.node for number, leader in leaders.items() if leader is not None},
        _serving(snapshot, shards),
        nodes_of(snapshot),
        {number: leader_change(number, key.state.epoch, snapshot) for number, key in shards.items()},
    )


def kept_view(kept: Kept) -> ClusterView:
    """Returns the cluster as it was when its node kept it: nobody leads, nobody serves."""
    shards = {number: each.key for number, each in sorted(kept.shards.items())}
    return ClusterView(0, kept.cluster, shards, {}, {}, {}, {})


def nodes_of(snapshot: Snapshot) -> dict[str, NodeKey]:
    """Returns the nodes that run, by their names, in order. Raises Corrupt."""
    names = sorted(key.removeprefix(NODES) for key in snapshot.entries if key.startswith(NODES))
    return {name: read_node(name, snapshot.entries[NODES + name].value) for name in names}


def newer_map(view: ClusterView, known: ClusterMap | None) -> ClusterMap | None:
    """Returns the map; None if it says the same as the known one."""
    found = view.map()
    return None if known is not None and replace(found, version=known.version) == known else found


def _numbers(snapshot: Snapshot) -> list[int]:
    found = [key.removeprefix(SHARDS) for key in snapshot.entries if key.startswith(SHARDS)]
    if unknown := [each for each in found if not each.isdecimal()]:
        raise Corrupt(f"{SHARDS}{unknown[0]}", 0, "not the number of a shard; nothing else may write in the registry")
    return sorted(map(int, found))


def _serving(snapshot: Snapshot, shards: Mapping[int, ShardKey]) -> dict[int, ServingKey]:
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
