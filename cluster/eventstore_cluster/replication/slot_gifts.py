"""What the transaction of a split writes besides the state of its shard: the new shards get their slots, an in-sync set and a
leader, and the cluster another layout.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from eventstore.chunks.documents import Tree
from eventstore.chunks.folder import Ancestor
from eventstore.records.cluster_map import without_slots
from eventstore.records.splits import Split
from eventstore_cluster.registry.lineage import Lineage
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replica_keys import running_replicas
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    LEFT,
    SHARDS,
    UNSERVED,
    LeftKey,
    ShardKey,
    leader_value,
    read_cluster,
    read_shard,
)
from eventstore_cluster.replica.registry_state import Leader, Seat, Swap


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a log is split.

    Attributes:
        through: the last sequence before the split.
        file: the event file that has it; 0: the log is empty.
        end: the byte where the file ends.
        checksum: of the file.
        places: see `Birth`.
    """

    through: int
    file: int
    end: int
    checksum: int
    places: Tree


@dataclass(frozen=True, slots=True)
class Gift:
    """What the transaction of a split compares and writes.

    Attributes:
        own: the key of the shard once it has given slots away.
        compared: other keys, with the revisions that must have written them.
        changes: other keys, with their new values.
        heirs: the lease of each key that names a leader.
    """

    own: ShardKey
    compared: dict[str, int]
    changes: dict[str, Tree | None]
    heirs: dict[str, int]


def keys_of(shards: Iterable[int], seen: RegistrySnapshot) -> dict[int, ShardKey]:
    """Returns the keys of the shards in preparation among `shards` that the snapshot has."""
    values = {number: seen.value(f"{SHARDS}{number}") for number in shards}
    return {number: read_shard(number, value) for number, value in values.items() if value is not None}


def give(shard: int, own: ShardKey, swap: Swap, cut: Cut, seen: RegistrySnapshot) -> Gift:
    """Returns what the transaction compares and writes that gives slots of a shard away. `seen`: what its leader read last."""
    children, cluster = keys_of((child for child, _ in swap.gifts), seen), read_cluster(seen.value(CLUSTER) or {})
    layout = cluster.layout + 1
    splits = tuple(Split(layout, shard, child, cut.through) for child, _ in swap.gifts)
    ancestors = (*own.lineage.ancestors, Ancestor(own.store, cut.file))
    changes: dict[str, Tree | None] = {CLUSTER: replace(cluster, layout=layout).value()}
    others: dict[str, Tree | None] = {}
    heirs: dict[str, int] = {}
    slots = own.slots
    for split, (child, in_sync) in zip(splits, swap.gifts, strict=True):
        key = children[child]
        assert key.lineage.birth is not None, "a shard in preparation is to get slots"
        birth = replace(key.lineage.birth, end=cut.end, checksum=cut.checksum, places=cut.places)
        state = replace(key.state, epoch=swap.state.epoch, in_sync=in_sync, generation=swap.state.generation)
        if (heir := _heir(child, key, in_sync, seen)) is not None:  # no election, which others would wait for
            leader, lease = heir
            state = replace(state, epoch=state.epoch + 1, leader=leader.member)
            others[f"{LEADERS}{child}"], heirs[f"{LEADERS}{child}"] = leader_value(leader, int(time.time())), lease
        given = replace(key, slots=birth.slots, state=state, lineage=Lineage((split,), ancestors, birth))
        changes[f"{SHARDS}{child}"] = given.value()
        others[f"{LEFT}{child}"] = LeftKey(swap.state.epoch, "", f"it was split off: from shard {shard}").value()
        others[f"{UNSERVED}{child}"] = {}
        slots = without_slots(slots, birth.slots)
    lineage = replace(own.lineage, splits=(*own.lineage.splits, *splits))
    compared = {key: seen.revision_of(key) for key in changes}
    return Gift(replace(own, slots=slots, lineage=lineage), compared, changes | others, heirs)


def _heir(child: int, key: ShardKey, in_sync: frozenset[Seat], seen: RegistrySnapshot) -> tuple[Leader, int] | None:
    """Returns the clone that is to lead a new shard, with the address that its process says, and the lease of that process."""
    running = running_replicas(child, seen)
    for node in key.state.replicas:
        found = running.get(node)
        if found is None or found.clone is None or not found.clone.lease:
            continue
        if (member := Seat(node, found.incarnation)) in in_sync:
            return Leader(member, found.run, found.address), found.clone.lease
    return None
