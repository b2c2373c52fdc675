"""Raises the format of a cluster, once the program of every node knows a newer one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eventstore.errors import EventStoreError
from eventstore_cluster.nodes.cluster_view import cluster_view
from eventstore_cluster.nodes.moving.asking import write_for_all
from eventstore_cluster.nodes.moving.plans import with_registry
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import CLUSTER, FORMAT


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What the format of a cluster was, and what it is now."""

    before: int
    format: int


def upgrade(etcd: EtcdOptions, cluster: str) -> Upgraded:
    """Raises the format of the cluster to the newest one that this program knows. It cannot be taken back.

    Raises:
        EventStoreError: there is no such cluster; or a node does not know the format, or keeps a replica and does not run.
    """

    async def write(registry: EtcdRegistry, seen: RegistrySnapshot) -> Upgraded:
        view = cluster_view(seen)
        assert view is not None
        before = view.cluster.format
        if before < FORMAT:
            if (why := view.held_up(FORMAT)) is not None:
                raise EventStoreError(f"the cluster keeps format {before}: {why}")
            raised = {CLUSTER: replace(view.cluster, format=FORMAT).value()}
            compared = {CLUSTER: seen.revision_of(CLUSTER)}
            await write_for_all(registry, seen, {"format": FORMAT}, raised, compared, "the cluster has")
        return Upgraded(before, FORMAT)

    return with_registry(etcd, cluster, write)
