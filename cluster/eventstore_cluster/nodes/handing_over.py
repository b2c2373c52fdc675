"""Has another replica that is in sync lead: a person writes who, and the leader hands over.

What is asked for stays in the registry until it is done, so the caller may go away, and may ask again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import trio

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.accepting_loss import check_format, keeps_none, running_replica, shard_key
from eventstore_cluster.nodes.cluster_view import cluster_view
from eventstore_cluster.nodes.first_read import first_read_of_cluster, on_registry, read_while
from eventstore_cluster.nodes.leader_changes import leader_change
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import NODES
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replica_keys import running_replicas
from eventstore_cluster.registry.replicated_keys import LEADERS, SERVING, SHARDS, read_leader, read_serving
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Seat
from eventstore_cluster.status import SILENT_S, status_of

_RESTART_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class NewLeader:
    """The leader after a hand-over.

    Attributes:
        node: leads the shard, since this epoch.
        seconds: how long it took; None if it led before.
        left: if another node leads than was asked for: which node led before it, and why it no longer does; None if that is not
            known.
    """

    shard: int
    node: str
    epoch: int
    seconds: float | None
    left: str | None = None


def hand_over(etcd: EtcdOptions, cluster: str, shard: int, node: str, wait_s: float) -> NewLeader:
    """Has the replica on this node lead, and waits until a replica leads after that: this one, unless it died meanwhile. If it
    leads already, a hand-over that was asked for before is cancelled.

    Raises:
        InvalidArgument: there is no such shard, the node keeps no replica of it, or the replica does not run or is not in sync.
            A replica that has just led is started again and catches up; it is waited for, for some seconds.
        EventStoreError: it was not done within `wait_s` seconds, and stays asked for.
        RegistryUnavailable, RegistryRefused, Corrupt
    """
    found = on_registry(etcd, cluster, lambda registry: _hand_over(registry, shard, node, wait_s))
    if isinstance(found, NewLeader):
        return found
    raise EventStoreError(_why_not(found, shard, node, wait_s))


async def _hand_over(registry: EtcdRegistry, shard: int, node: str, wait_s: float) -> NewLeader | RegistrySnapshot:
    """Returns what was seen last if it was not done in time."""
    seen, began = await first_read_of_cluster(registry), trio.current_time()
    seen = await read_while(registry, lambda seen: _comes_back(seen, shard, node), min(wait_s, _RESTART_S), seen)
    while True:
        _check(seen, shard, node)
        epoch, leads = shard_key(seen, shard).state.epoch, _leads(seen, shard) == node
        if await _asked(registry, seen, shard, None if leads else node):
            break
        seen = await registry.read()
    if leads:
        return NewLeader(shard, node, epoch, None)
    seen = await read_while(registry, lambda seen: _serves_after(epoch, seen, shard) is None, wait_s, seen)
    found = _serves_after(epoch, seen, shard)
    if found is None:
        return seen
    left = None if found[0] == node else leader_change(shard, found[1], seen).text
    return NewLeader(shard, *found, trio.current_time() - began, left)


def _why_not(seen: RegistrySnapshot, shard: int, node: str, wait_s: float) -> str:
    """Returns why leadership was not handed over, and what to do. Asks the leader, which knows what keeps it from that."""
    leader = _leads(seen, shard)
    if leader is None:
        return (
            f"shard {shard} has had no leader for {wait_s:g} s; {node} is preferred when one is elected. `eventstore cluster "
            "status --etcd` shows why"
        )
    view = cluster_view(seen)
    assert view is not None
    then = "that replica keeps up"
    lag = (status_of(view.map(), None, 0.0).shards[list(view.shards).index(shard)].behind or {}).get(node)
    if node not in {member.node for member in view.shards[shard].state.in_sync}:
        why = f"the replica on {node} is not in sync any more"
    elif lag is None or lag.silent_seconds is None:
        why = f"the replica on {node} is not connected to the leader on {leader}"
    elif lag.silent_seconds > SILENT_S:
        why = f"the replica on {node} has not answered the leader on {leader} for {lag.silent_seconds:.1f} s"
    elif lag.seconds > Limits().hand_over_lag_s:
        why = f"the replica on {node} is {lag.seconds:.1f} s behind the leader on {leader}"
    else:
        why = f"the replica on {node} sorts event files first, so that clients wait less"
        then = f"they are sorted, or {Limits().hand_over_sort_s:g} s have passed"
    return (
        f"shard {shard} was not handed over within {wait_s:g} s: {why}. It is as soon as {then}; `eventstore cluster lead "
        f"{shard} {leader}` takes that back"
    )


def _comes_back(seen: RegistrySnapshot, shard: int, node: str) -> bool:
    """Whether the replica will soon be able to lead. A replica that has just led is started again, and catches up."""
    check_format(seen)
    state, running = shard_key(seen, shard).state, running_replicas(shard, seen)
    if node not in state.replicas or f"{NODES}{node}" not in seen.entries:
        return False
    return node not in running or Seat(node, running[node].incarnation) not in state.in_sync


def _check(seen: RegistrySnapshot, shard: int, node: str) -> None:
    check_format(seen)
    state = shard_key(seen, shard).state
    if node not in state.replicas:
        kept = ", ".join(state.replicas)
        raise InvalidArgument(keeps_none(node, shard, state.replicas), field="node", value=node, limit=kept)
    if state.wanted is not None and node not in state.wanted:
        raise InvalidArgument(
            f"the replica of shard {shard} on {node} is to move away: one of {', '.join(state.wanted)} may lead, or "
            f"`eventstore cluster cancel {shard}` takes that back",
            field="node",
            value=node,
        )
    replica = running_replica(seen, shard, node)
    if Seat(node, replica.incarnation) not in state.in_sync:
        raise InvalidArgument(
            f"the replica of shard {shard} on {node} is not in sync: it lacks events that were acknowledged. It catches up by "
            "itself; ask again when `eventstore cluster status` shows it in sync. If all that were in sync are lost for good, "
            "--accept-loss has it lead nevertheless",
            field="node",
            value=node,
        )


async def _asked(registry: EtcdRegistry, seen: RegistrySnapshot, shard: int, node: str | None) -> bool:
    """Writes who is to lead. Returns False if the shard has changed meanwhile."""
    key, found = f"{SHARDS}{shard}", shard_key(seen, shard)
    if found.state.successor == node:
        return True
    value = replace(found, state=found.state.to_be_led_by(node, registry.by)).value()
    try:
        return await registry.transact({key: seen.revision_of(key)}, {key: value}) is not None
    except OutcomeUnknown:
        return False


def _leads(seen: RegistrySnapshot, shard: int) -> str | None:
    leader = read_leader(seen.entries.get(f"{LEADERS}{shard}"))
    return None if leader is None else leader.member.node


def _serves_after(epoch: int, seen: RegistrySnapshot, shard: int) -> tuple[str, int] | None:
    """Returns the node that serves the shard in a later epoch, and that one."""
    serving, node = read_serving(seen.value(f"{SERVING}{shard}")), _leads(seen, shard)
    return None if serving is None or node is None or serving.epoch <= epoch else (node, serving.epoch)
