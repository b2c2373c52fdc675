"""What `plans` says of a shard under way: a replica's trouble is named for as long as it lasts."""

from __future__ import annotations

import uuid

import pytest

from eventstore.records.cluster_map import ALL_SLOTS
from eventstore_cluster.nodes.moving.progress import under_way
from eventstore_cluster.registry.failing import Failing
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.registry import Entry, Snapshot
from eventstore_cluster.registry.replica_keys import CloneKey, ReplicaKey
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey
from eventstore_cluster.replica.registry_state import Member, ShardState

FAILING = (Failing(0, 1, "the disk is full"),)
MOVES = ShardState(4, frozenset({Member("n1", "a")}), ("n1", "n2"), 1, wanted=("n2",), before=("n1",))


@pytest.mark.parametrize(
    ("replica", "is_told"),
    [
        (None, True),
        (ReplicaKey("b", "run", 4, ((1, 5),)), False),
        (ReplicaKey("b", "run", 0, (), clone=CloneKey(0)), True),
        (ReplicaKey("b", "run", 0, (), clone=CloneKey(3)), False),
    ],
    ids=["it does not run", "it follows", "a clone that has only begun", "a clone that has files"],
)
def test_that_a_replica_cannot_run_is_told_until_it_does(replica: ReplicaKey | None, is_told: bool) -> None:
    keys = {
        "cluster": ClusterKey(uuid.uuid4(), 1, 2, 1).value(),
        "shard/0": ShardKey(uuid.uuid4(), ALL_SLOTS, MOVES).value(),
        "leader/0": {"node": "n1", "incarnation": "a", "run": "r", "address": "127.0.0.1:1"},
        "node/n1": NodeKey("127.0.0.1:1", "r", "0").value(),
        "node/n2": NodeKey("127.0.0.1:2", "r", "0", failing=FAILING).value(),
        **({} if replica is None else {"replica/0/n2": replica.value()}),
    }
    (row,) = under_way(Snapshot(9, {name: Entry(value, 9) for name, value in keys.items()}), {})
    trouble = "; its replica on n2 cannot run since 1970-01-01 00:00:01 UTC: the disk is full"
    assert row.does == f"copies to n2{trouble if is_told else ''}"
