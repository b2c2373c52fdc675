"""Has a replica lead that others would not elect: a person accepts that acknowledged events are lost (R12).

The leader is deposed first, with an empty set, so that no other replica is elected. Then its process or its lease must end: it
answers no read after that. Then one transaction makes the replica the only member of the set, in a new generation; it is
elected as any other member is. It may be in sync in a registry that was restored from an older copy, by which another replica
leads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import shown
from eventstore_cluster.nodes.first_read import first_read_of_cluster, on_registry, read_while
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import NODES
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import ReplicaKey, running_replicas
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    LEFT,
    SERVING,
    SHARDS,
    LeftKey,
    ShardKey,
    read_cluster,
    read_leader,
    read_shard,
)
from eventstore_cluster.replica.registry_state import Seat

MARGIN: Final = 1.1
_START_WAIT_S: Final = 60.0
_NONCE: Final = "a person accepted loss"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as it may lead.

    Attributes:
        replica: what its process says of itself in the registry.
        in_sync: the nodes whose running replicas are in sync, and have what this replica may lack.
        leader: the node that leads now.
        epoch: the largest that anybody knows.
    """

    shard: int
    node: str
    replica: ReplicaKey
    in_sync: tuple[str, ...]
    leader: str | None
    epoch: int


def candidate(etcd: EtcdOptions, cluster: str, shard: int, node: str) -> Candidate:
    """Returns what is known of the replica.

    Raises:
        InvalidArgument: there is no such shard, no process of this replica runs, or it leads.
        RegistryUnavailable, RegistryRefused, Corrupt
    """

    async def look(registry: EtcdRegistry) -> Candidate:
        await first_read_of_cluster(registry)
        return _candidate(await _seen_running(registry, shard, node), shard, node)

    found = on_registry(etcd, cluster, look)
    if node == found.leader:
        raise InvalidArgument(f"the replica of shard {shard} on {node} leads already", field="node", value=node)
    return found


def _candidate(seen: RegistrySnapshot, shard: int, node: str) -> Candidate:
    check_format(seen)
    state, running = shard_key(seen, shard).state, running_replicas(shard, seen)
    replica = _of_node(running, shard, node)
    leader = read_leader(seen.entries.get(f"{LEADERS}{shard}"))
    in_sync = sorted(name for name, key in running.items() if Seat(name, key.incarnation) in state.in_sync)
    epoch = max(state.epoch, *(key.epoch for key in running.values()))  # a log with a later epoch than the registry's stops
    return Candidate(shard, node, replica, tuple(in_sync), None if leader is None else leader.member.node, epoch)


async def _seen_running(registry: EtcdRegistry, shard: int, node: str) -> RegistrySnapshot:
    """Reads the registry, and waits for the replica to run: if it stops because of what the registry says, it is started again
    and again.
    """

    def pending(seen: RegistrySnapshot) -> bool:
        return node not in running_replicas(shard, seen) and f"{NODES}{node}" in seen.entries

    return await read_while(registry, pending, _START_WAIT_S)


def check_format(seen: RegistrySnapshot) -> None:
    """Raises UnsupportedVersion: a later program wrote the registry; what it means is not known here."""
    if (value := seen.value(CLUSTER)) is not None:
        read_cluster(value)


def running_replica(seen: RegistrySnapshot, shard: int, node: str) -> ReplicaKey:
    """Raises InvalidArgument: no process of this replica runs."""
    return _of_node(running_replicas(shard, seen), shard, node)


def _of_node(running: Mapping[str, ReplicaKey], shard: int, node: str) -> ReplicaKey:
    if node not in running:
        have = f"those on {', '.join(sorted(running))} do" if running else "none does"
        raise InvalidArgument(
            f"no process of a replica of shard {shard} runs on node {node}; {have}. Start the node first",
            field="node",
            value=node,
        )
    return running[node]


def shard_key(seen: RegistrySnapshot, shard: int) -> ShardKey:
    """Raises InvalidArgument: there is no such shard."""
    value = seen.value(f"{SHARDS}{shard}")
    if value is None:
        raise InvalidArgument(f"there is no shard {shard}: `eventstore cluster status` shows those there are", field="shard")
    return read_shard(shard, value)


def keeps_none(node: str, shard: int, kept: Sequence[str]) -> str:
    """Returns that the node keeps no replica of the shard, and which do."""
    return f"node {shown(node)} keeps no replica of shard {shard}: {', '.join(kept)} {'does' if len(kept) == 1 else 'do'}"


def accept_loss(etcd: EtcdOptions, cluster: str, chosen: Candidate, lease_s: float) -> None:
    """Has the replica lead. `lease_s`: the longest lease of a process of the cluster, and so the longest wait for the last
    leader.

    Raises:
        EventStoreError: the shard changed meanwhile, and nothing was done; look again.
        RegistryUnavailable, RegistryRefused
    """
    on_registry(etcd, cluster, lambda registry: _accept(registry, chosen, lease_s))


async def _accept(registry: EtcdRegistry, chosen: Candidate, lease_s: float) -> None:
    key, keys = f"{SHARDS}{chosen.shard}", [f"{LEADERS}{chosen.shard}", f"{SERVING}{chosen.shard}"]
    seen = await _seen_running(registry, chosen.shard, chosen.node)
    if _candidate(seen, chosen.shard, chosen.node).leader is not None:
        deposed = shard_key(seen, chosen.shard)
        deposed = replace(deposed, state=replace(deposed.state, in_sync=frozenset(), successor=None).written_by(_NONCE))
        await _written(registry, {key: seen.revision_of(key)}, {key: deposed.value(), **dict.fromkeys(keys)})
    await read_while(registry, lambda seen: _last_leader_runs(seen, chosen.shard), lease_s * MARGIN)  # deposed now or before
    seen = await _seen_running(registry, chosen.shard, chosen.node)
    shard, now = shard_key(seen, chosen.shard), _candidate(seen, chosen.shard, chosen.node)
    state = replace(
        shard.state,
        epoch=now.epoch,
        generation=shard.state.generation + 1,
        leader=None,
        successor=None,
        in_sync=frozenset({Seat(chosen.node, now.replica.incarnation)}),
        nonce=_NONCE,
        leader_by=registry.by,
    )
    compared = {key: seen.revision_of(key), **{each: seen.revision_of(each) for each in keys}}
    left = LeftKey(state.epoch, chosen.leader or "", _NONCE)
    changes = {key: replace(shard, state=state).value(), f"{LEFT}{chosen.shard}": left.value()}
    await _written(registry, compared, {**changes, **dict.fromkeys(keys)})


def _last_leader_runs(seen: RegistrySnapshot, shard: int) -> bool:
    """Whether the process of the last leader has its lease: each start is another incarnation."""
    leader, running = shard_key(seen, shard).state.leader, running_replicas(shard, seen)
    return leader is not None and leader.node in running and running[leader.node].incarnation == leader.incarnation


async def _written(registry: EtcdRegistry, compared: dict[str, int], changes: Changes) -> None:
    try:
        revision = await registry.transact(compared, changes)
    except OutcomeUnknown as error:
        raise EventStoreError(f"{error.message}: look with `eventstore cluster status` whether the replica leads") from None
    if revision is None:
        raise EventStoreError("the shard has changed meanwhile, and nothing was done; look with `eventstore cluster status`")
