"""The shards of a cluster as its registry has them, with figures of the shards that serve; works also while no node runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import trio

from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view
from eventstore_cluster.nodes.first_read import first_read_of_cluster
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_clocks import clocks_apart
from eventstore_cluster.registry.pauses import pauses_of
from eventstore_cluster.registry.preparing import preparing_of
from eventstore_cluster.status import ClusterStatus, ShardRow, status_of, with_troubles

_WAIT_S: Final = 2.0


def registry_status(etcd: EtcdOptions, cluster: str, interval_s: float) -> ClusterStatus:
    """Reads the registry, and asks each shard that serves twice for its figures, `interval_s` apart.

    Raises:
        EventStoreError: there is no such cluster.
        RegistryUnavailable, RegistryRefused, Corrupt
    """
    view, preparing, paused = trio.run(_view, etcd, cluster)
    found = status_of(view.map(), None, interval_s)
    shards = [_row(view, row) for row in with_troubles(found.shards, view.troubles())]
    return replace(
        found,
        nodes=list(view.nodes),
        shards=shards,
        clocks=clocks_apart(view.nodes),
        preparing=preparing,
        paused=paused,
        format=view.format_note(),
    )


async def _view(etcd: EtcdOptions, cluster: str) -> tuple[ClusterView, list[str], list[str]]:
    async with Gateway(etcd) as gateway:
        seen = await first_read_of_cluster(EtcdRegistry(gateway, cluster), _WAIT_S)
    view = cluster_view(seen)
    assert view is not None
    preparing = [
        f"shard {each.shard} is made out of shard {each.parent}: {each.node} {each.text}" for each in preparing_of(seen)
    ]
    return view, preparing, pauses_of(seen)


def _row(view: ClusterView, row: ShardRow) -> ShardRow:
    state = view.shards[row.shard].state
    in_sync = {member.node for member in state.in_sync}
    change = view.changes[row.shard]
    return replace(
        row,
        leader_since=None if change.since is None else datetime.fromtimestamp(change.since, UTC).isoformat(),
        leader_reason=change.text,
        successor=state.successor,
        node=view.leaders.get(row.shard),
        replicas=list(state.replicas),
        in_sync=[*(name for name in state.replicas if name in in_sync), *sorted(in_sync.difference(state.replicas))],
    )
