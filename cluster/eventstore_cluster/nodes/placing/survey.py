"""The cluster as placement sees it, from its registry and from what the leaders say of their shards."""

from __future__ import annotations

from collections.abc import Mapping

from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view
from eventstore_cluster.nodes.placing.fleet import Fleet, PlacedNode, PlacedShard
from eventstore_cluster.registry.node_keys import DRAINING
from eventstore_cluster.registry.registry import Snapshot
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.status import ShardRow


def surveyed(seen: Snapshot, rows: Mapping[int, ShardRow]) -> Fleet:
    """`rows`: the figures of the shards that answer; another one counts as empty. Returns nothing if there is no cluster.

    Raises:
        UnsupportedVersion, Corrupt: as `cluster_view`.
    """
    view = cluster_view(seen)
    if view is None:
        return Fleet({}, {})
    draining = {key.removeprefix(DRAINING) for key in seen.entries if key.startswith(DRAINING)}
    names = {*view.nodes, *draining, *(name for key in view.shards.values() for name in key.state.replicas)}
    nodes = {name: _node(name, view, draining) for name in sorted(names)}
    return Fleet(nodes, {number: _shard(number, key, view, rows.get(number)) for number, key in view.shards.items()})


def _node(name: str, view: ClusterView, draining: set[str]) -> PlacedNode:
    key = view.nodes.get(name)
    if key is None:
        return PlacedNode(name, takes=False, leaves=name in draining)
    return PlacedNode(name, key.zone, key.free_bytes, takes=name not in draining, leaves=name in draining)


def _shard(number: int, key: ShardKey, view: ClusterView, row: ShardRow | None) -> PlacedShard:
    state, busy = key.state, None
    if state.wanted is not None:
        busy = f"moves to {', '.join(state.wanted)}"
    elif state.successor is not None:
        busy = f"is to be handed over to {state.successor}"
    size, rate = (0, 0.0) if row is None else (row.log_bytes or 0, row.events_a_second or 0.0)
    leader = state.successor or view.leaders.get(number)
    return PlacedShard(number, state.wanted or state.replicas, leader, size, rate, state.in_sync_min, busy)
