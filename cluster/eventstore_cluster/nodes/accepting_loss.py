"""Has a replica lead that was not in sync: the word of a person who accepts that acknowledged events are lost (R12).

The leader is deposed first, and its lease waited for: it answers no read after that. Then one transaction makes the replica
the only member of the in-sync set, in a new generation; it is elected as any other member is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import trio

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.first_read import first_read
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.registry import Changes, Snapshot
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    LEFT,
    SERVING,
    SHARDS,
    LeftKey,
    ReplicaKey,
    ShardKey,
    read_cluster,
    read_leader,
    read_shard,
    running_replicas,
)
from eventstore_cluster.replica.registry_state import Member

MARGIN: Final = 1.1
_NONCE: Final = "a person accepted loss"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as it may lead. `in_sync`: who is, and has what it may lack; `leader`: the node that leads now.
    `epoch`: the largest that anybody knows; `registry_epoch`: that of the registry, which may have been restored from a copy.
    """

    shard: int
    node: str
    replica: ReplicaKey
    in_sync: tuple[str, ...]
    leader: str | None
    epoch: int
    registry_epoch: int


def candidate(etcd: EtcdOptions, cluster: str, shard: int, node: str) -> Candidate:
    """Returns what is known of the replica.

    Raises:
        InvalidArgument: there is no such shard, no process of this replica runs, or it is in sync.
        RegistryUnavailable, RegistryRefused, Corrupt
    """

    async def look() -> Candidate:
        async with Gateway(etcd) as gateway:
            return _candidate(await first_read(EtcdRegistry(gateway, cluster)), shard, node)

    found = trio.run(look)
    if node in found.in_sync and found.replica.epoch <= found.registry_epoch:
        raise InvalidArgument(
            f"the replica of shard {shard} on {node} is in sync: it leads by itself when no other one does",
            field="node",
            value=node,
        )
    return found


def _candidate(seen: Snapshot, shard: int, node: str) -> Candidate:
    check_format(seen)
    state, running = shard_key(seen, shard).state, running_replicas(shard, seen)
    replica = running_replica(seen, shard, node)
    leader = read_leader(seen.entries.get(f"{LEADERS}{shard}"))
    in_sync = sorted(name for name, key in running.items() if Member(name, key.incarnation) in state.in_sync)
    epoch = max(state.epoch, *(key.epoch for key in running.values()))  # a log with a later epoch than the registry's stops
    return Candidate(shard, node, replica, tuple(in_sync), None if leader is None else leader.member.node, epoch, state.epoch)


def check_format(seen: Snapshot) -> None:
    """Raises UnsupportedVersion: a later program wrote the registry; what it means is not known here."""
    if (value := seen.value(CLUSTER)) is not None:
        read_cluster(value)


def running_replica(seen: Snapshot, shard: int, node: str) -> ReplicaKey:
    """Raises InvalidArgument: no process of this replica runs."""
    running = running_replicas(shard, seen)
    if node not in running:
        have = f"those on {', '.join(sorted(running))} do" if running else "none does"
        raise InvalidArgument(
            f"no process of a replica of shard {shard} runs on node {node}; {have}. Start the node first",
            field="node",
            value=node,
        )
    return running[node]


def shard_key(seen: Snapshot, shard: int) -> ShardKey:
    """Raises InvalidArgument: there is no such shard."""
    value = seen.value(f"{SHARDS}{shard}")
    if value is None:
        raise InvalidArgument(f"there is no shard {shard}: `eventstore cluster status` shows those there are", field="shard")
    return read_shard(shard, value)


def accept_loss(etcd: EtcdOptions, cluster: str, chosen: Candidate, lease_s: float) -> None:
    """Has the replica lead. `lease_s`: the longest lease of a process of the cluster.

    Raises:
        EventStoreError: the shard changed meanwhile, and nothing was done; look again.
        RegistryUnavailable, RegistryRefused
    """

    async def accept() -> None:
        async with Gateway(etcd) as gateway:
            await _accept(EtcdRegistry(gateway, cluster), chosen, lease_s)

    trio.run(accept)


async def _accept(registry: EtcdRegistry, chosen: Candidate, lease_s: float) -> None:
    keys = [f"{LEADERS}{chosen.shard}", f"{SERVING}{chosen.shard}"]
    if chosen.leader is not None:
        await _written(registry, {}, dict.fromkeys(keys))
        await trio.sleep(lease_s * MARGIN)
    seen = await registry.read()
    shard, now = shard_key(seen, chosen.shard), _candidate(seen, chosen.shard, chosen.node)
    state = replace(
        shard.state, epoch=now.epoch, generation=shard.state.generation + 1, leader=None, successor=None,
        in_sync=frozenset({Member(chosen.node, now.replica.incarnation)}), nonce=_NONCE,
    )  # fmt: skip
    key = f"{SHARDS}{chosen.shard}"
    compared = {key: seen.revision_of(key), **{each: seen.revision_of(each) for each in keys}}
    left = LeftKey(state.epoch, chosen.leader or "", _NONCE)
    changes = {key: replace(shard, state=state).value(), f"{LEFT}{chosen.shard}": left.value()}
    await _written(registry, compared, {**changes, **dict.fromkeys(keys)})


async def _written(registry: EtcdRegistry, compared: dict[str, int], changes: Changes) -> None:
    try:
        revision = await registry.transact(compared, changes)
    except OutcomeUnknown as error:
        raise EventStoreError(f"{error.message}: look with `eventstore cluster status` whether the replica leads") from None
    if revision is None:
        raise EventStoreError("the shard has changed meanwhile, and nothing was done; look with `eventstore cluster status`")
