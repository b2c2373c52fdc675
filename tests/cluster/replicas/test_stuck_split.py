"""What keeps a split, or any replica, from going on is said wherever an operator looks, with the time since when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventstore_cluster.nodes.cluster_view import nodes_of
from eventstore_cluster.nodes.splitting.splitting import split
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replicated_keys import read_serving
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.long]


def hinder(three: ThreeNodes) -> list[Path]:
    """Has no node finish the folder of shard 1, as on a disk that is full by then. Returns what is in the way."""
    hindrances = [three.folder / name / "shard-1" / "store.json.tmp" for name in three.nodes]
    for each in hindrances:
        each.parent.mkdir(mode=0o700, exist_ok=True)  # a folder of a node is open to no others
        each.mkdir()
    return hindrances


def test_a_split_that_cannot_be_finished_says_why_and_since_when_and_ends_when_it_can(
    tmp_path: Path, etcd: Etcd, cluster: str
) -> None:
    with ThreeNodes(tmp_path, etcd, cluster) as three:
        hindrances = hinder(three)
        split(EtcdOptions((etcd.url,)), cluster, 0, 2)
        wait_until(lambda: three.state().split == (), "the slots are given away")
        said = [f"its replica on {name} cannot run since " for name in three.nodes]

        def told() -> bool:
            (shard,) = [each for each in json.loads(run_cluster(etcd, cluster, "plans", "--json").stdout) if each["shard"] == 1]
            return all(each in shard["does"] for each in said)

        wait_until(told, "plans names the replicas that cannot run")
        (shard,) = json.loads(run_cluster(etcd, cluster, "plans", "--json").stdout)
        assert shard["does"].startswith("is split off shard 0; no process serves it: ")
        assert (
            f"the folder of shard 1 is not finished, which is tried again: [Errno 21] Is a directory: '{hindrances[0]}'"
            in (shard["does"])
        )
        status = json.loads(run_cluster(etcd, cluster, "status", "--json", code=1).stdout)
        assert all(each in status["shards"][1]["error"] for each in said)
        for each in hindrances:
            each.rmdir()
        wait_until(lambda: read_serving(keys(etcd, cluster).value("serving/1")) is not None, "shard 1 is served")
        assert json.loads(run_cluster(etcd, cluster, "plans", "--json").stdout) == []
        wait_until(lambda: not any(each.failing for each in nodes_of(keys(etcd, cluster)).values()), "all replicas run")
        for name in list(three.nodes)[1:]:
            three.kill(name)
        wait_until(lambda: "serving/1" not in keys(etcd, cluster).entries, "no process serves shard 1 any more")
        plans = json.loads(run_cluster(etcd, cluster, "plans", "--json").stdout)
        assert plans == [], "its split is over"
