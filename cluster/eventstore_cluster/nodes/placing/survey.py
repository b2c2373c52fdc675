"""The cluster as placement sees it, from its registry and from what the leaders say of their shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view
from eventstore_cluster.nodes.placing.fleet import Fleet, PlacedNode, PlacedShard
from eventstore_cluster.registry.node_keys import DRAINING, MOVING, read_moving
from eventstore_cluster.registry.pauses import pause_text
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.leading import copied
from eventstore_cluster.status import ShardRow


def surveyed(seen: RegistrySnapshot, rows: Mapping[int, ShardRow]) -> Fleet:
    """Returns the cluster as placement sees it; empty if there is no cluster. `rows`: the figures of the shards that answer;
    other shards count as empty.

    Raises:
        UnsupportedVersion: the cluster has a format that this program does not know.
        Corrupt: something else wrote a key.
    """
    view = cluster_view(seen)
    if view is None:
        return Fleet({}, {})
    draining = {key.removeprefix(DRAINING) for key in seen.entries if key.startswith(DRAINING)}
    names = {*view.nodes, *draining, *(name for key in view.shards.values() for name in key.state.replicas)}
    promised = _promised(view, rows)
    nodes = {name: _node(name, view, draining, promised[name]) for name in sorted(names)}
    pause_all = read_moving(seen.value(MOVING)).pause
    paused = {number: pause_text(number, key.state, pause_all) for number, key in view.shards.items()}
    shards = {number: _shard(number, key, view, rows.get(number), paused[number]) for number, key in view.shards.items()}
    return Fleet(nodes, shards)


def _promised(view: ClusterView, rows: Mapping[int, ShardRow]) -> Counter[str]:
    """Returns the bytes that nodes lack of replicas which are copied to them."""
    found = Counter[str]()
    for number, key in view.shards.items():
        if (row := rows.get(number)) is None:
            continue
        for name in copied(key.state):
            behind = (row.behind or {}).get(name)
            found[name] += (row.log_bytes or 0) if behind is None or behind.bytes is None else behind.bytes
    return found


def _node(name: str, view: ClusterView, draining: set[str], promised: int) -> PlacedNode:
    key = view.nodes.get(name)
    if key is None:
        return PlacedNode(name, takes=False, leaves=name in draining)
    free = None if key.free_bytes is None else max(key.free_bytes - promised, 0)
    return PlacedNode(name, key.zone, free, takes=name not in draining, leaves=name in draining)


def _shard(number: int, key: ShardKey, view: ClusterView, row: ShardRow | None, paused: str | None) -> PlacedShard:
    state, busy = key.state, None
    if state.wanted is not None:
        busy = f"moves to {', '.join(state.wanted)}"
    elif state.successor is not None:
        busy = f"is to be handed over to {state.successor}"
    elif state.split:
        busy = "is being split"
    size, rate = (0, 0.0) if row is None else (row.log_bytes or 0, row.events_a_second or 0.0)
    leader = state.successor or view.leaders.get(number)
    silent = row is None or row.log_bytes is None
    return PlacedShard(
        number, state.wanted or state.replicas, leader, size, rate, state.in_sync_min, busy, bool(state.split), silent, paused
    )
