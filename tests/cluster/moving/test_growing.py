"""A cluster grows from three nodes to four, and one is drained, while clients write, read and consume."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from itertools import islice

import pytest

import eventstore as es
from eventstore.errors import InvalidArgument
from eventstore_cluster.nodes.moving.plans import (
    carry_out,
    limit_moves,
    pending,
    remove,
    start_draining,
    survey,
    take_back,
)
from eventstore_cluster.nodes.placing.balancing import drain, rebalance
from eventstore_cluster.nodes.placing.fleet import Fleet
from eventstore_cluster.nodes.placing.plan import PlacementPlan
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
SETTINGS = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024, "broker_chunk_size_bytes": 16 * 1024}
SHARDS = 3
AGGREGATES = 12


class Writer:
    """Appends to aggregates with expected versions and sends messages, until told to stop."""

    def __init__(self, nodes: ThreeNodes) -> None:
        self.versions: Counter[str] = Counter()
        self.sent = 0
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(nodes,))
        self._thread.start()

    def _run(self, nodes: ThreeNodes) -> None:
        try:
            with nodes.client() as store:
                topic = store.topic("orders")
                while not self._stop.is_set():
                    for number in range(AGGREGATES):
                        name = f"a-{number}"
                        store.append(name, [es.NewEvent("Counted", b"x" * 500)], self.versions[name])
                        self.versions[name] += 1
                    topic.send(str(self.sent).encode(), key=str(self.sent))
                    self.sent += 1
        except BaseException as error:
            self._failed.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._failed == []


def replicas(nodes: ThreeNodes) -> Counter[str]:
    return Counter(name for shard in range(SHARDS) for name in nodes.state(shard).replicas)


@pytest.mark.long
def test_a_node_joins_and_one_is_drained_while_clients_go_on(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> None:
    options, name = EtcdOptions((etcd.url,)), "growing"
    with ThreeNodes(tmp_path_factory.mktemp("growing"), etcd, name, shards=SHARDS, replicas=2, **SETTINGS) as nodes:
        with nodes.client() as store:
            store.broker.create_topic("orders", 2)
        limit_moves(options, name, 1, 2_000_000, unlimited=False)
        writer = Writer(nodes)
        try:
            wait_until(lambda: writer.sent > 50, "clients write")
            nodes.start("n4")

            def carried_out(make: PlacementPlan) -> None:
                carry_out(options, name, found, make)
                most = 0

                def done() -> bool:
                    nonlocal most
                    most = max(most, sum(key.startswith("moving/") for key in keys(etcd, name).entries))
                    return not pending(options, name)

                wait_until(done, "nothing is under way")
                assert most <= 1, "one shard copies at a time"

            found = survey(options, name, 0.5)
            assert not any(each.silent for each in found.fleet.shards.values())
            assert any(shard.size > 0 for shard in found.fleet.shards.values())
            carried_out(rebalance(found.fleet))
            assert replicas(nodes)["n4"] >= 1
            found = survey(options, name, 0.5)
            start_draining(options, name, "n2")
            carried_out(drain(found.fleet, "n2"))
            assert replicas(nodes)["n2"] == 0
            with pytest.raises(InvalidArgument, match="node n2 keeps no replicas, but runs: stop it first"):
                remove(options, name, "n2")
        finally:
            writer.stop()
        nodes.stop("n2")
        remove(options, name, "n2")
        with nodes.client() as store:
            assert {each: store.version(each) for each in writer.versions} == dict(writer.versions)
            versions: dict[str, list[int]] = {}
            for event in store.read_all():
                versions.setdefault(event.aggregate_id, []).append(event.version)
            assert versions == {each: list(range(1, count + 1)) for each, count in writer.versions.items()}
            with store.consumer("billing", "orders") as consumer:
                bodies = {message.body for message in islice(consumer, writer.sent)}
            assert len(bodies) >= writer.sent - 20, "messages may be sent twice by a hand-over"


@pytest.mark.long
def test_what_stands_in_the_way_is_said_and_a_move_is_taken_back(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> None:
    options, name = EtcdOptions((etcd.url,)), "refused"
    with ThreeNodes(tmp_path_factory.mktemp("refused"), etcd, name, **SETTINGS) as nodes:
        nodes.start("n4")
        follower = nodes.followers()[0]
        plan = json.loads(run_cluster(etcd, name, "drain", follower, "--dry-run", "--json").stdout)
        assert [each["shard"] for each in plan["changes"]] == [0]
        assert nodes.state().wanted is None, "only shown"
        before = nodes.state().replicas
        nodes.kill("n4")
        wait_until(lambda: "node/n4" not in keys(etcd, name).entries, "the lease of the node is over")
        refused = run_cluster(etcd, name, "move", "0", "--from", follower, "--to", "n4", code=2)
        assert "there is no node 'n4'" in refused.stderr
        nodes.start("n4")
        stale = survey(options, name, 0.0)
        nodes.kill("n4")  # after it was looked at
        assert run_cluster(etcd, name, "pause").stdout == "Moves of all shards are paused; none is under way.\n"
        with nodes.client() as store:
            store.append("a", [es.NewEvent("Counted", b"1")], 0)
        carry_out(options, name, stale, drain(stale.fleet, follower))
        (waits,) = pending(options, name)
        assert re.fullmatch(r"paused by .+@.+ \(claimed\): `eventstore cluster resume` continues", waits.does)
        with nodes.client() as store:
            store.append("a", [es.NewEvent("Counted", b"2")], 1)
        assert nodes.state().replicas == before, "no step is begun"
        assert json.loads(run_cluster(etcd, name, "resume", "--json").stdout) == {
            "paused": False,
            "shards": [0],
            "still_paused": [],
        }
        wait_until(lambda: "n4" in nodes.state().replicas, "the leader has named it")
        (moving,) = json.loads(run_cluster(etcd, name, "plans", "--json").stdout)
        assert (moving["shard"], moving["before"]) == (0, list(before))
        again = run_cluster(etcd, name, "move", "0", "--from", follower, "--to", "n4", "--wait", "0", code=2)
        assert "the replicas of shard 0 are being moved to" in again.stderr
        assert take_back(options, name, 0) == [0]
        wait_until(lambda: nodes.state().wanted is None, "it is taken back")
        assert nodes.state().replicas == before
        with pytest.raises(InvalidArgument, match="nothing to cancel for shard 0"):
            take_back(options, name, 0)
        assert run_cluster(etcd, name, "plans").stdout == "Nothing is under way.\n"
        said = run_cluster(etcd, name, "limits", "--moves", "3", "--max-rate", "50MB").stdout
        assert said == "At most 3 shards copy replicas at once, 50.0 MB/s each.\n"


def test_no_fleet_is_empty_by_mistake() -> None:
    with pytest.raises(InvalidArgument, match="there is no node 'n1'; these are: none"):
        drain(Fleet({}, {}), "n1")
