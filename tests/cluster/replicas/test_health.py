"""What operators and load balancers are told of a cluster in trouble: everywhere the same, in the same words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore_cluster.status import cluster_status
from tests.cli.processes import output, run
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.nodes.named_node import NamedNode
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
CLUSTER = "troubled"


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd that is not shared, so that it may be stopped."""
    with running(tmp_path) as (one,):
        yield one


def state(node: NamedNode) -> tuple[bool, bool]:
    found = node.health()
    return found["healthy"], found["degraded"]


def said_everywhere(etcd: Etcd, node: NamedNode) -> list[str]:
    """Returns what the node's health says, and which of the other ways to ask do not say the same."""
    said = node.attention()
    words = said.partition(": ")[2]  # a shard that is asked itself does not say which one it is
    by_command = {
        "status --etcd": run("cluster", "status", "--interval", 0, "--etcd", etcd.url, "--cluster", CLUSTER).stderr,
        "status": run("cluster", "status", "--interval", 0, store=node.address).stderr,
        "stats": output("stats", store=node.address),
    }
    return [said, *(command for command, shown in by_command.items() if words not in " ".join(shown.split()))]


@pytest.mark.long
def test_a_shard_that_is_served_nowhere_degrades_every_node_and_without_etcd_none_is_healthy(
    tmp_path: Path, own_etcd: Etcd
) -> None:
    with ThreeNodes(tmp_path, own_etcd, CLUSTER, shards=3, replicas=1) as three:
        wait_until(lambda: all(state(node) == (True, False) for node in three.nodes.values()), "all is well")
        gone = three.leader(2)
        three.stop(gone)
        first, second = three.nodes.values()
        because = f"it has no leader ({gone}: it was stopped), and of those in sync none runs: {gone}"
        wait_until(lambda: because in first.attention(), "it is named")
        assert said_everywhere(own_etcd, first) == [f"shard 2: no process serves it: {because}"]
        assert state(first) == state(second) == (True, True)
        own_etcd.kill()
        wait_until(lambda: state(first) == state(second) == (False, True), "their leases are over")
        said = first.attention()
        assert re.match(r"the registry cannot be used since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: etcd does not answer", said)
        assert cluster_status(first.address, 0).trouble == said
        own_etcd.start()
        own_etcd.ready()
        wait_until(lambda: state(first) == state(second) == (True, True), "they serve again")
        three.start(gone)
        wait_until(lambda: all(state(node) == (True, False) for node in three.nodes.values()), "all is well again")


@pytest.mark.long
def test_a_leader_that_cannot_commit_is_unhealthy_and_says_for_whom_it_waits(tmp_path: Path, own_etcd: Etcd) -> None:
    with ThreeNodes(tmp_path, own_etcd, CLUSTER) as three:
        leader, (other, left) = three.leader(), three.followers()
        three.kill(leader)
        three.kill(other)
        node = three.nodes[left]
        said = f"shard 0: no process serves it: {left} was elected and waits for {other}"
        wait_until(lambda: node.attention() == said, "it was elected")
        assert state(node) == (False, True)
        assert said_everywhere(own_etcd, node) == [said]
        lines = node.metrics().splitlines()
        assert {'eventstore_shard_serving{shard="0"} 0', 'eventstore_shard_up{shard="0"} 0'} <= set(lines)
        three.start(other)
        missing = f"shard 0: not in sync: {leader}"
        wait_until(lambda: {each.attention() for each in three.nodes.values()} == {missing}, "it serves")
        assert all(state(each) == (True, True) for each in three.nodes.values())
        assert said_everywhere(own_etcd, node) == [missing]
        three.kill(other)
        refused = "shard 0: appends are refused: 2 replicas must be in sync, only "
        wait_until(lambda: node.attention() == f"{refused}{left} answers" or three.leader() != left, "it lacks replicas")
