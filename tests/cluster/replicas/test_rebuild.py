"""An etcd that is lost with all its data: its registry is written again from what nodes know, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from eventstore_cluster.nodes.rebuilding.choice import NONCE
from eventstore_cluster.registry.kept_keys import KEPT, OFFERS
from tests.cli.processes import output, refused
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
CLUSTER = "lost"


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd that is not shared, so that it may lose what it has."""
    with running(tmp_path) as (one,):
        yield one


def append(store: BlockingStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert store.append("a-1", [es.NewEvent("Counted", {"number": number})], number).version == number + 1
        store.append(f"b-{number}", [es.NewEvent("Counted")], 0)


def check(store: BlockingStore, count: int) -> None:
    assert [json.loads(item.data)["number"] for item in store.read("a-1")] == list(range(count))
    assert {item.aggregate_id for item in store.read_all(aggregate_prefix="b-")} == {f"b-{n}" for n in range(count)}


def of_cluster(etcd: Etcd) -> list[str]:
    return ["--etcd", etcd.url, "--cluster", CLUSTER]


def wait_until_offered(etcd: Etcd, names: set[str]) -> None:
    """Waits until these nodes, and nobody else, offer what they know."""
    wait_until(
        lambda: (
            {each for each in keys(etcd, CLUSTER).entries if each.startswith(OFFERS) and each.count("/") == 1}
            == {f"{OFFERS}{name}" for name in names}
        ),
        "nodes offer what they know",
    )


@pytest.mark.long
def test_nothing_acknowledged_is_lost_with_etcd_and_all_processes(tmp_path: Path, lost: Etcd) -> None:
    with ThreeNodes(tmp_path, lost, CLUSTER, shards=2) as three:
        with three.client() as store:
            store.broker.create_topic("orders", 2)
            append(store, 0, 20)
            deposed = three.leader(0)
            three.kill(deposed)
            append(store, 20, 20)
            store.topic("orders").send(b"1", key="k")
        leaders = [three.leader(shard) for shard in range(2)]
        before = [three.state(shard) for shard in range(2)]
        cluster = keys(lost, CLUSTER).value("cluster")
        for name in list(three.nodes):
            three.kill(name)
        lost.lose_data()
        for name in NAMES:
            three.start(name)
        wait_until_offered(lost, set(NAMES))
        assert "etcd has no cluster lost" in three.nodes["n1"].attention()
        said = refused("cluster", "create", "--shards", 2, "--replicas", 3, *of_cluster(lost), code=2)
        assert "eventstore cluster rebuild" in said
        said = output("cluster", "rebuild", *of_cluster(lost))
        for shard, leader in enumerate(leaders):
            assert f"Shard {shard} continues with the replica on {leader}." in said
        three.wait_until_in_sync()
        assert keys(lost, CLUSTER).value("cluster") == cluster
        for shard in range(2):
            after = three.state(shard)
            assert after.generation == before[shard].generation + 1
            assert after.epoch > before[shard].epoch
            assert (after.replicas, after.in_sync_min) == (before[shard].replicas, before[shard].in_sync_min)
        with three.client() as store:
            check(store, 40)
            assert [info.name for info in store.broker.topics()] == ["orders"]
            append(store, 40, 5)
            check(store, 45)
        wait_until_offered(lost, set())
        assert "the cluster exists in etcd" in refused("cluster", "rebuild", *of_cluster(lost), "--wait", 0, code=2)
        assert NONCE in output("cluster", "status", *of_cluster(lost))


@pytest.mark.long
def test_an_etcd_that_was_restored_from_an_older_copy_stops_the_replicas(tmp_path: Path, lost: Etcd) -> None:
    with ThreeNodes(tmp_path, lost, CLUSTER) as three:
        with three.client() as store:
            append(store, 0, 10)
        lost.copy_data(tmp_path / "backup")
        three.wait_until_in_sync()
        dropped = three.followers()[0]
        three.kill(dropped)
        with three.client() as store:
            append(store, 10, 10)
        left, now = set(three.nodes), three.state().nonce
        for name in left:
            kept = tmp_path / name / KEPT
            wait_until(lambda kept=kept: now in kept.read_text(), "the node has heard that")  # type: ignore[misc]
        for name in list(three.nodes):
            three.kill(name)
        epoch = three.state().epoch
        lost.restore_data(tmp_path / "backup")
        three.start(dropped)  # was in sync then, and lacks what was acknowledged since
        wait_until(lambda: three.state().epoch > epoch, "it is elected, which nobody can know better")
        for name in left:
            three.start(name)
        for name in left:
            wait_until(lambda name=name: "restored from an older copy" in three.nodes[name].attention(), "it stops")  # type: ignore[misc]
        chosen = sorted(left)[0]
        wait_until(lambda: chosen in three.running(), "its process says so again")
        given = ["--accept-loss", "--confirm", chosen]
        output("cluster", "lead", 0, chosen, *of_cluster(lost), *given)
        three.wait_until_in_sync()
        with three.client() as store:
            check(store, 20)


@pytest.mark.long
def test_nodes_and_clients_that_ran_meanwhile_go_on(tmp_path: Path, lost: Etcd) -> None:
    with ThreeNodes(tmp_path, lost, CLUSTER) as three, three.client() as store:
        append(store, 0, 10)
        lost.lose_data()
        wait_until_offered(lost, set(NAMES))
        wait_until(lambda: three.running() == set(NAMES), "their replicas say how their logs end")
        assert "eventstore cluster rebuild" in three.nodes["n1"].attention()
        output("cluster", "rebuild", *of_cluster(lost))
        append(store, 10, 10)  # the same client
        check(store, 20)
        three.wait_until_in_sync()
        wait_until(lambda: three.nodes["n1"].health()["attention"] is None, "all is well")


@pytest.mark.long
def test_without_a_replica_a_person_accepts_what_may_be_lost(tmp_path: Path, lost: Etcd) -> None:
    with ThreeNodes(tmp_path, lost, CLUSTER) as three:
        with three.client() as store:
            append(store, 0, 10)
        gone = three.leader()
        for name in NAMES:
            three.kill(name)
        lost.lose_data()
        others = set(NAMES) - {gone}
        for name in others:
            three.start(name)
        wait_until_offered(lost, others)
        wait_until(lambda: three.running() == others, "their replicas say how their logs end")
        said = refused("cluster", "rebuild", *of_cluster(lost), "--wait", 0, code=1)
        assert f"shard 0: the replica on {gone} is not seen; shard 0: none that is seen led epoch 1, the last one" in said
        accepting = ["cluster", "rebuild", *of_cluster(lost), "--wait", "0", "--accept-loss"]
        assert "nothing was done: 'n1' is not lost" in refused(*accepting, "--confirm", "n1", code=2)
        assert "cluster" not in keys(lost, CLUSTER).entries
        accepting[-2] = "60"
        three.start(gone)  # which is found in time, so that nothing is lost
        assert f"Shard 0 continues with the replica on {gone}." in output(*accepting)
        three.wait_until_in_sync()
        with three.client() as store:
            check(store, 10)


@pytest.mark.long
def test_a_replica_that_was_not_seen_becomes_a_copy_of_the_others(tmp_path: Path, lost: Etcd) -> None:
    with ThreeNodes(tmp_path, lost, CLUSTER) as three:
        with three.client() as store:
            append(store, 0, 10)
        gone = three.leader()
        for name in NAMES:
            three.kill(name)
        lost.lose_data()
        for name in set(NAMES) - {gone}:
            three.start(name)
        wait_until(lambda: three.running() == set(NAMES) - {gone}, "their replicas say how their logs end")
        given = ["--accept-loss", "--confirm", CLUSTER, "--wait", 20]
        assert "in a new generation" in output("cluster", "rebuild", *of_cluster(lost), *given)
        with three.client() as store:
            check(store, 10)  # all three had it
            append(store, 10, 10)
        three.start(gone)
        three.wait_until_in_sync()
        with three.client() as store:
            check(store, 20)
