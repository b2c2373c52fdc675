"""What the processes of a node's replicas are started with."""

from __future__ import annotations

import uuid
from pathlib import Path

from eventstore.records.cluster_map import ALL_SLOTS, ClusterMap, Shard
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster.nodes.node_file import node_file
from eventstore_cluster.nodes.options import ReplicatedOptions
from eventstore_cluster.nodes.replicas import NodeReplicas
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.security.access_file import give


def access_file(replicas: NodeReplicas) -> object:
    """Returns the list of access that the next process of shard 0 goes by."""
    identity = ShardIdentity(uuid.UUID(int=1), 0, ALL_SLOTS, uuid.UUID(int=2))
    return replicas._start(identity, None).values["access_file"]


def test_a_list_of_access_that_is_made_while_a_node_runs_counts_from_its_next_start_for_its_replicas_too(
    tmp_path: Path,
) -> None:
    """A process that is started meanwhile would have identities, and a port for replicas that no certificate guards."""
    data, etcd = tmp_path / "n1", EtcdOptions(("http://127.0.0.1:1",))
    options = ReplicatedOptions(ServerSettings(data=data), {}, "n1", "c", etcd, 5, "127.0.0.1")
    known = ClusterMap(uuid.UUID(int=1).bytes, 1, 1, (Shard(0, uuid.UUID(int=2).bytes, ALL_SLOTS, None),))
    with node_file(data, "n1") as folder:
        first = NodeReplicas(options, folder, Gateway(etcd), lambda error: None)
        first.publish(known)
        give(data, "boss", "admin")
        assert access_file(first) is None
        again = NodeReplicas(options, folder, Gateway(etcd), lambda error: None)
        again.publish(known)
        assert access_file(again) == str(data / "access.json")
