"""Keys of subjects with replicas: a change of leader loses none, and an erasure reaches a replica that was away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import eventstore as es
from eventstore.subjects.traces import find_traces
from eventstore_cluster.nodes.splitting.splitting import split, take_back
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.subjects.conftest import master_key
from tests.waiting import wait_until

pytest.importorskip("cryptography")
pytestmark = [pytest.mark.heavy, pytest.mark.long]
CLUSTER = "subjects"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    folder = tmp_path_factory.mktemp("three")
    with ThreeNodes(folder, etcd, CLUSTER, subject_key_file=str(master_key(folder))) as nodes:
        yield nodes


def moved(subject: str) -> es.NewEvent:
    return es.NewEvent("Moved", {"of": subject}, subject=subject)


def traces(three: ThreeNodes, subject: str) -> dict[str, int]:
    return {name: len(find_traces(subject, [three.folder / name]).findings) for name in NAMES}


def test_every_replica_has_the_key_of_an_event_that_was_acknowledged(three: ThreeNodes) -> None:
    with three.client() as store:
        for n in range(20):
            store.append(f"order-{n}", [moved(f"s-{n}")], 0)
        for n in range(20):
            assert traces(three, f"s-{n}") == dict.fromkeys(NAMES, 1)
    leader = three.leader()
    three.kill(leader)
    wait_until(lambda: three.leader() != leader, "another one leads")
    with three.client() as store:  # which has no lease
        assert [each.json() for each in store.read_all() if each.subject] == [{"of": f"s-{n}"} for n in range(20)]
    three.start(leader)
    three.wait_until_in_sync()


def test_a_replica_that_was_away_destroys_the_key_when_it_comes_back(three: ThreeNodes) -> None:
    with three.client() as store:
        store.append("gone-1", [moved("gone")], 0)
        away = three.followers()[0]
        three.kill(away)
        done = store.erase("gone", "asked")
        assert done.had_key
        assert traces(three, "gone") == {name: int(name == away) for name in NAMES}
        three.start(away)
        three.wait_until_in_sync()
        wait_until(lambda: traces(three, "gone") == dict.fromkeys(NAMES, 0), "no replica has the key")
    leader = three.leader()
    three.kill(leader)
    wait_until(lambda: three.leader() != leader, "another one leads")
    with three.client() as store:
        (event,) = store.read("gone-1")
        assert event.erased
        with pytest.raises(es.SubjectErased):
            store.append("gone-2", [moved("gone")], 0)
    three.start(leader)
    three.wait_until_in_sync()


def test_a_shard_with_keys_is_not_split(three: ThreeNodes, etcd: Etcd) -> None:
    with three.client() as store:
        store.append("kept-1", [moved("kept")], 0)
        assert "has keys of subjects" in run_cluster(etcd, CLUSTER, "split", "0", code=2).stderr
        split(EtcdOptions((etcd.url,)), CLUSTER, 0, 2)  # whatever the command says
        wait_until(
            lambda: "keys of subjects" in run_cluster(etcd, CLUSTER, "plans", "--json").stdout,
            "the clones say why they do not go on",
        )
        take_back(EtcdOptions((etcd.url,)), CLUSTER, 0)
        store.append("kept-2", [moved("kept")], 0)
        assert [each.json() for each in store.read("kept-2")] == [{"of": "kept"}]
