"""Keys of the registry with members of a newer program: this one does not know them, and writes them again."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from eventstore.chunks.documents import Tree
from eventstore.chunks.folder import Ancestor
from eventstore.records.splits import Split
from eventstore_cluster.registry.cluster_requests import REQUESTS_MAX, read_requests, requests_with
from eventstore_cluster.registry.kept_keys import Kept, KeptShard, offer_keys, read_kept, read_offers
from eventstore_cluster.registry.lineage import Birth, Lineage
from eventstore_cluster.registry.node_keys import MovingKey, read_moving
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey, read_cluster, read_shard
from eventstore_cluster.replica.registry_state import Pause, Seat, ShardState

NEWER: Tree = {"of a newer program": {"n": [1]}}
CLUSTER = ClusterKey(uuid.UUID(int=7), 1, 3, 2, 4)
STATE = ShardState(
    3,
    frozenset({Seat("n1", "a"), Seat("n2", "b")}),
    ("n1", "n2"),
    1,
    Seat("n1", "a"),
    nonce="x",
    successor="n2",
    wanted=("n2", "n3"),
    before=("n1", "n2"),
    split=(4,),
    splits=2,
    history=("w",),
    by="ann",
    leader_by="ben",
    pause=Pause(True, "eve"),
)
LINEAGE = Lineage(
    (Split(2, 0, 1, 9),), (Ancestor(uuid.UUID(int=8), 5),), Birth(0, ((0, 9),), 5, 6, {"a": 1}), (uuid.UUID(int=9), 0)
)
SHARD = ShardKey(uuid.UUID(int=6), ((0, 9),), STATE, LINEAGE)


def newer(value: Tree) -> Tree:
    return {**value, **NEWER}


def test_a_member_of_this_program_is_never_taken_for_one_of_a_newer_one() -> None:
    assert read_cluster(CLUSTER.value()) == CLUSTER
    assert read_shard(1, SHARD.value()) == SHARD
    limits = MovingKey(3, 7, Pause(True, "ann"))
    assert read_moving(limits.value()) == limits


def test_the_key_of_a_cluster_keeps_them() -> None:
    found = read_cluster(newer(CLUSTER.value()))
    assert replace(found, layout=2).value() == newer(replace(CLUSTER, layout=2).value())


def test_the_key_of_a_shard_keeps_them_and_so_does_its_birth() -> None:
    written: Any = newer(SHARD.value())
    written["birth"] = newer(written["birth"])
    found = read_shard(1, written)
    changed: Any = replace(found, state=replace(found.state, epoch=4)).value()
    assert changed == {**written, "epoch": 4}


def test_the_limits_of_moves_keep_them() -> None:
    limits = MovingKey(3, 7, Pause(True, "ann"))
    found = read_moving(newer(limits.value()))
    assert replace(found, at_once=5).value() == newer(replace(limits, at_once=5).value())


def test_requests_keep_them_each_and_all() -> None:
    first: Any = requests_with(None, "a1", "ann", 1, {"what": "drain"})
    written: Tree = newer({"latest": [newer(each) for each in first["latest"]] + [{"not": "a request"}]})
    second: Any = requests_with(written, "b2", "ben", 2, {"what": "pause"})
    assert second["of a newer program"] == {"n": [1]}
    assert second["latest"][0] == newer(first["latest"][0])
    assert [each.id for each in read_requests(second)] == ["a1", "b2"]
    many = second
    for each in range(REQUESTS_MAX):
        many = requests_with(many, f"c{each}", "", 3, {})
    assert len(many["latest"]) == REQUESTS_MAX
    assert read_requests(many)[-1].number == REQUESTS_MAX + 2


def test_what_a_node_keeps_and_offers_has_them() -> None:
    own: Any = Kept(CLUSTER, {1: KeptShard(12, SHARD)}).value()
    document = newer({**own, "cluster": newer(own["cluster"]), "shards": {"1": newer(own["shards"]["1"])}})
    found = read_kept("kept.json", document)
    assert found.value() == document
    later = Kept(found.cluster, {1: KeptShard(13, found.shards[1].key)}).newest(found)
    assert later.value() == newer({**document, "shards": {"1": {**newer(own["shards"]["1"]), "revision": 13}}})
    offered = offer_keys("n1", found)
    seen = RegistrySnapshot(5, {key: RegistryEntry(value, 5) for key, value in offered.items()})
    assert read_offers(seen)["n1"] == replace(found, unknown={}), "the document's own members are not offered"
