"""What `plans` says of a shard under way: what is waited for, and a replica's trouble for as long as it lasts."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from eventstore.chunks.documents import Tree
from eventstore.records.cluster_map import ALL_SLOTS
from eventstore_cluster.nodes.moving.progress import under_way
from eventstore_cluster.registry.failing import Failing
from eventstore_cluster.registry.lineage import Birth, Lineage
from eventstore_cluster.registry.node_keys import NodeKey, ticket_value
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import CloneKey, ReplicaKey
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey
from eventstore_cluster.replica.registry_state import Seat, ShardState
from eventstore_cluster.status import Behind, ShardRow

OTHER = NodeKey("127.0.0.1:2", "r", "0")
FAILING = (Failing(0, 1, "the disk is full"),)
MOVES = ShardState(4, frozenset({Seat("n1", "a")}), ("n1", "n2"), 1, wanted=("n2",), before=("n1",))

ROW = ShardRow(0, "0-4095", "127.0.0.1:3", 4)


def does(state: ShardState, other: NodeKey = OTHER, more: dict[str, Tree] | None = None, row: ShardRow | None = None) -> str:
    """Returns what is said of shard 0, which n1 leads. `other`: the key of n2."""
    keys: dict[str, Tree] = {
        "cluster": ClusterKey(uuid.uuid4(), 1, 2, 1).value(),
        "shard/0": ShardKey(uuid.uuid4(), ALL_SLOTS, state).value(),
        "leader/0": {"node": "n1", "incarnation": "a", "run": "r", "address": "127.0.0.1:1"},
        "node/n1": NodeKey("127.0.0.1:1", "r", "0").value(),
        "node/n2": other.value(),
        "moving/0": ticket_value(0, "r"),
        **(more or {}),
    }
    (found,) = under_way(
        RegistrySnapshot(9, {name: RegistryEntry(value, 9) for name, value in keys.items()}), {} if row is None else {0: row}
    )
    return found.does


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
    more = {} if replica is None else {"replica/0/n2": replica.value()}
    trouble = "; its replica on n2 cannot run since 1970-01-01 00:00:01 UTC: the disk is full"
    assert does(MOVES, replace(OTHER, failing=FAILING), more) == f"copies to n2{trouble if is_told else ''}"


def test_a_leader_that_has_no_turn_to_copy_waits_for_one() -> None:
    assert does(MOVES, more={"moving/0": ticket_value(7, "s")}) == "waits until fewer others copy"
    assert does(MOVES, more={"moving/0": ticket_value(7, "s"), "moving/1": ticket_value(0, "r")}) == "copies to n2"


@pytest.mark.parametrize(
    ("behind", "waits"),
    [
        (Behind(0.0, 0, 0.1), ", which sorts event files first, for 60 s at most"),
        (Behind(0.0, 0, 5.0), ""),
        (Behind(3.0, 900, 0.1), ""),
        (None, ""),
    ],
    ids=["it keeps up", "it does not answer", "it is behind", "it is not connected"],
)
def test_a_hand_over_says_that_the_next_leader_sorts_first_if_nothing_else_is_left(behind: Behind | None, waits: str) -> None:
    both = frozenset({Seat("n1", "a"), Seat("n2", "b")})
    row = replace(ROW, behind={} if behind is None else {"n2": behind})
    assert does(replace(MOVES, in_sync=both), row=row) == f"hands over to n2{waits}"


def test_a_split_says_how_many_files_are_sorted_as_clones_link_only_those() -> None:
    state = ShardState(4, frozenset({Seat("n1", "a")}), ("n1",), 1, split=(1,))
    born = ShardState(0, frozenset(), ("n1",), 1)
    key = ShardKey(uuid.uuid4(), (), born, Lineage(birth=Birth(0, ((2048, 4095),))))
    more = {"shard/1": key.value(), "replica/1/n1": ReplicaKey("c", "run", 0, (), clone=CloneKey(3)).value()}
    waits = "waits for clones: shard 1 on n1 has 3 event files"
    assert does(state, more=more, row=replace(ROW, event_files=61, sorted_files=60)) == waits
    sorts = f"{waits}; n1 has sorted 5 of 61 event files, and clones get sorted ones"
    assert does(state, more=more, row=replace(ROW, event_files=61, sorted_files=5)) == sorts
