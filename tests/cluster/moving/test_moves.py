"""A replica moves to another node while a client writes: nothing is lost, doubled or refused."""

from __future__ import annotations

import json

import pytest

import eventstore as es
from eventstore.errors import InvalidArgument
from eventstore_cluster.nodes.moving.moving import move, wait_until_moved
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
SETTINGS = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
WAIT_S = 120.0


def event(number: int) -> list[es.NewEvent]:
    return [es.NewEvent("Counted", {"number": number})]


@pytest.mark.long
def test_a_follower_and_the_leader_move_to_a_new_node_while_a_client_appends(
    tmp_path_factory: pytest.TempPathFactory, etcd: Etcd
) -> None:
    options = EtcdOptions((etcd.url,))
    with ThreeNodes(tmp_path_factory.mktemp("moves"), etcd, "moves", **SETTINGS) as nodes, nodes.client() as store:
        for number in range(300):
            store.append("a", event(number), number)
        nodes.start("n4")
        leader, (first, second) = nodes.leader(), nodes.followers()
        asked = move(options, "moves", 0, first, "n4")
        for number in range(300, 400):
            store.append("a", event(number), number)
        wait_until_moved(options, "moves", asked, WAIT_S)
        assert set(nodes.state().replicas) == {leader, second, "n4"} == {each.node for each in nodes.state().in_sync}
        assert nodes.leader() == leader
        with pytest.raises(InvalidArgument, match="keeps no replica of shard 0"):
            move(options, "moves", 0, first, "n4")
        with pytest.raises(InvalidArgument, match="keeps a replica of shard 0 already"):
            move(options, "moves", 0, leader, "n4")
        with pytest.raises(InvalidArgument, match="there is no node 'n9'; these are: n1, n2, n3, n4"):
            move(options, "moves", 0, leader, "n9")

        folder = nodes.folder / first
        wait_until(lambda: not (folder / "shard-0").exists(), "the folder of the replica is put away")
        assert [each.name.rpartition("-")[0] for each in (folder / "left").iterdir()] == ["shard-0"]
        nodes.stop(leader)  # it is away while its replica moves
        wait_until(lambda: nodes.leader() != leader, "another one leads")

        asked = move(options, "moves", 0, leader, first)  # which comes back, as a new one
        for number in range(400, 500):
            store.append("a", event(number), number)
        wait_until_moved(options, "moves", asked, WAIT_S)
        assert set(nodes.state().replicas) == {first, second, "n4"} == {each.node for each in nodes.state().in_sync}
        nodes.start(leader)
        wait_until(lambda: not (nodes.folder / leader / "shard-0").exists(), "the folder of the node that was away is put away")
        assert [json.loads(each.data)["number"] for each in store.read("a")] == list(range(500))
