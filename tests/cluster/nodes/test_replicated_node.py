"""Nodes of a cluster with replicas, as real processes beside a real etcd: names, leases, maps, and which replicas they run."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from eventstore import blocking
from eventstore.chunks.files import OsFiles
from eventstore.chunks.opening import LOCK
from eventstore.errors import ConnectionLost, NotEnoughReplicas
from eventstore.model import ANY, NewEvent
from eventstore.records.cluster_map import ClusterMap
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import SHARDS, ServingKey, read_shard
from tests.cli.processes import refused, run
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.node_process import wait_until_ended
from tests.cluster.nodes.named_node import NamedNode, change, keys, registry_of
from tests.forwarder import Forwarder
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.heavy


def create(etcd: Etcd, cluster: str, shards: int, replicas: int) -> str:
    """Creates the cluster without waiting for its leaders, and returns what was said."""
    given = ["--shards", shards, "--replicas", replicas, "--cluster", cluster, "--etcd", etcd.url, "--wait", 0]
    return run("cluster", "create", *given).stdout


def create_elsewhere(etcd: Etcd, cluster: str, shards: int) -> None:
    """Creates a cluster whose replicas are all on a node that is none of the test's: nobody leads."""
    change(etcd, cluster, lambda _: {"node/far": NodeKey("192.0.2.7:7701", "run", "0").value()})
    assert "nodes far" in create(etcd, cluster, shards, 1)


def nobody_leads(shard: int) -> str:
    return f"shard {shard}: no process serves it: it has no leader, and of those in sync none runs: far"


def known_map(node: NamedNode) -> ClusterMap:
    with blocking.connect(node.address) as store:
        return store.cluster_map()


def test_a_node_has_its_name_from_its_start_to_its_stop(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster, options=["--lease", "60"]) as node:
        key = keys(etcd, cluster).value("node/n1")
        assert key is not None
        assert f"tcp://{key['address']}" == node.address
        assert node.terminate() == 0
    assert keys(etcd, cluster).entries == {}


@pytest.mark.long
def test_a_name_that_is_taken_is_refused_and_that_of_a_killed_node_is_waited_for(
    tmp_path: Path, etcd: Etcd, cluster: str
) -> None:
    lease = ["--lease", "2"]
    (tmp_path / "other").mkdir()
    with NamedNode(tmp_path, "n1", etcd.url, cluster, options=lease) as node:
        given = ["--data", tmp_path / "refused", "--listen", "127.0.0.1:0", "--name", "n1", "--cluster", cluster, *lease]
        second = run("node", *given, "--etcd", etcd.url)
        assert second.returncode == 2
        said = second.stderr.splitlines()[-1]
        assert f"the name n1 is taken by the node at {node.address.removeprefix('tcp://')}" in said
        patient = ["--lease", "20"]
        with NamedNode(tmp_path / "other", "n1", etcd.url, cluster, options=patient, wait=False) as successor:
            wait_until(lambda: successor.said("waiting for the name of the node"), "it waits for the name")
            os.kill(node.pid, signal.SIGKILL)
            successor.wait_until_serving()
            assert successor.terminate() == 0


def test_clients_are_told_that_there_is_no_cluster_until_there_is_one(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        with pytest.raises(ConnectionLost, match=f"{cluster} has not been created: eventstore cluster create"):
            known_map(node)
        health = node.health()
        assert (health["healthy"], health["degraded"], health["shards"]) == (True, True, [])
        assert "has not been created" in health["attention"]
        change(etcd, cluster, lambda _: {"node/far": NodeKey("192.0.2.7:7701", "run", "0").value()})
        create(etcd, cluster, 1, 1)  # the shard is on the first node by name
        wait_until(lambda: node.attention() == nobody_leads(0), "it knows the cluster")
        assert [shard.leader for shard in known_map(node).shards] == [None]


def test_the_map_follows_who_serves_and_its_version_only_grows(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    create_elsewhere(etcd, cluster, 2)
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        first = known_map(node)
        assert first.version >> 40 == 1
        change(etcd, cluster, lambda _: {"serving/1": ServingKey("127.0.0.1:9", 3).value()})
        wait_until(lambda: known_map(node).version > first.version, "the map has changed")
        second = known_map(node)
        assert [(shard.leader, shard.epoch) for shard in second.shards] == [(None, 0), ("127.0.0.1:9", 3)]
        change(etcd, cluster, lambda _: {"unrelated": {}, "serving/0": ServingKey("127.0.0.1:8", 1).value()})
        change(etcd, cluster, lambda _: {"serving/1": None})
        wait_until(lambda: [shard.leader for shard in known_map(node).shards] == ["127.0.0.1:8", None], "it has again")
        assert known_map(node).version > second.version
        assert node.attention() == nobody_leads(1)


def test_a_port_that_a_dead_process_had_is_that_of_the_one_who_wrote_it_last(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    create_elsewhere(etcd, cluster, 2)
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        for shard in (1, 0):
            change(etcd, cluster, lambda _, shard=shard: {f"serving/{shard}": ServingKey("127.0.0.1:9", 1).value()})  # type: ignore[misc] # its type is that of the loop
        wait_until(lambda: node.attention() == nobody_leads(1), "the map has changed")
        assert [shard.leader for shard in known_map(node).shards] == ["127.0.0.1:9", None]


def test_a_node_runs_the_replicas_that_the_registry_gives_it(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as one, NamedNode(tmp_path, "n2", etcd.url, cluster) as two:
        assert "shards 4, replicas 1, in sync at least 1, nodes n1, n2" in create(etcd, cluster, 4, 1)
        for node, shards in ((one, [0, 2]), (two, [1, 3])):
            wait_until(lambda node=node, shards=shards: node.replicas() == shards, "it runs its replicas")  # type: ignore[misc] # as above
        folder = tmp_path / "n1" / "shard-0"
        wait_until(folder.exists, "its first replica has a folder")
        wait_until(lambda: len(one.shard_pids()) == 2, "its processes run")

        def moved(seen: RegistrySnapshot) -> dict[str, Any]:
            return {"shard/0": {**(seen.value("shard/0") or {}), "replicas": ["n2"]}}

        change(etcd, cluster, moved)
        wait_until(lambda: (one.replicas(), two.replicas()) == ([2], [0, 1, 3]), "the replica is elsewhere")
        assert len(one.shard_pids()) == 1
        assert folder.exists()
        wait_until(lambda: len(two.shard_pids()) == 3, "its process runs")
        left = one.shard_pids() + two.shard_pids()
        assert (one.terminate(), two.terminate()) == (0, 0)
        wait_until_ended(left)


@pytest.mark.long
def test_a_restarted_node_knows_its_cluster_and_its_folder(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        create(etcd, cluster, 1, 1)
        folder = tmp_path / "n1" / "shard-0"  # also when it is the only one
        wait_until((folder / "store.json").exists, "it runs its replica")
        assert node.terminate() == 0
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        wait_until(lambda: node.replicas() == [0], "it runs its replica")
        assert node.terminate() == 0
    data = ["--data", tmp_path / "n1", "--listen", "127.0.0.1:0"]
    assert "belongs to node n1, not to n2" in refused("node", *data, "--name", "n2", "--etcd", etcd.url)
    with NamedNode(tmp_path, "n1", etcd.url, "other") as node:
        assert "etcd has no cluster other; check --etcd and --cluster" in node.attention()
        with pytest.raises(ConnectionLost, match="etcd has no cluster other"):
            known_map(node)
        said = refused("cluster", "create", "--shards", 1, "--replicas", 1, "--cluster", "other", "--etcd", etcd.url, code=2)
        assert "the cluster is that of n1, which etcd has lost" in said
        assert node.terminate() == 0
    assert keys(etcd, "other").entries == {}
    (tmp_path / "n1" / "kept.json").unlink()
    assert "etcd has no cluster other" in refused("node", *data, "--name", "n1", "--etcd", etcd.url, "--cluster", "other")
    assert "--name NAME --etcd URL --cluster CLUSTER`, as before" in refused("node", *data)


def test_the_folder_of_a_node_of_another_cluster_is_refused(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    named = "--name", "n1", "--cluster", cluster, "--etcd", etcd.url
    with NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        create(etcd, cluster, 1, 1)
        wait_until((tmp_path / "n1" / "shard-0").exists, "its replica has a folder")
        assert node.terminate() == 0
    change(etcd, cluster, lambda seen: {"cluster": {**(seen.value("cluster") or {}), "uuid": "7" * 32}})
    said = refused("node", "--data", tmp_path / "n1", "--listen", "127.0.0.1:0", *named)
    assert "77777777-7777-7777-7777-777777777777" in said
    assert "belongs to node n1 of the cluster" in said
    (tmp_path / "n1" / "node.json").unlink()
    said = refused("node", "--data", tmp_path / "n1", "--listen", "127.0.0.1:0", *named)
    assert "holds shard-0" in said


@pytest.mark.long
def test_etcd_that_comes_late_is_waited_for_and_one_that_does_not_come_is_named(tmp_path: Path, cluster: str) -> None:
    with running(tmp_path) as (etcd,):
        etcd.kill()
        data = ["--data", tmp_path / "n1", "--listen", "127.0.0.1:0", "--name", "n1"]
        ended = run("node", *data, "--etcd", etcd.url)
        assert ended.returncode == 1
        said = ended.stderr.splitlines()[-1]
        assert f"etcd does not answer: {etcd.url}" in said
        assert "Check that a quorum of it runs, and that --etcd names it" in said
        with NamedNode(tmp_path, "n2", etcd.url, cluster, wait=False) as node:
            wait_until(lambda: node.said("waiting for etcd"), "it waits for etcd")
            assert node.terminate() == 0
        with NamedNode(tmp_path, "n1", etcd.url, cluster, wait=False) as node:
            wait_until(lambda: node.said("waiting for etcd"), "it waits for etcd")
            etcd.start()
            node.wait_until_serving()
            assert node.terminate() == 0


def test_while_etcd_is_away_a_node_goes_on_with_what_it_knows(tmp_path: Path, cluster: str) -> None:
    with running(tmp_path) as (etcd,), NamedNode(tmp_path, "n1", etcd.url, cluster) as node:
        create(etcd, cluster, 1, 1)
        wait_until(lambda: node.replicas() == [0], "it runs its replica")
        etcd.kill()
        wait_until(lambda: "UTC: etcd does not answer" in node.attention(), "it notices")
        assert known_map(node).shards[0].shard == 0
        assert node.replicas() == [0]
        etcd.start()
        wait_until(lambda: node.said("the registry can be used again"), "it notices")
        wait_until(lambda: "the registry cannot be used" not in node.attention(), "it says nothing of it any more")
        assert len(node.said("the registry cannot be used, and the node continues with what it knows")) == 1
        etcd.kill()
        assert node.terminate() == 0


def test_a_node_whose_lease_is_lost_registers_again_and_its_replicas_go_on(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster, options=["--lease", "2"]) as node:
        create(etcd, cluster, 1, 1)
        wait_until(node.shard_pids, "it runs its replica")
        before, pids = keys(etcd, cluster).value("node/n1"), node.shard_pids()

        async def revoke() -> None:
            key = base64.b64encode(f"/eventstore/{cluster}/node/n1".encode()).decode()
            async with registry_of(etcd, cluster) as (gateway, _):
                found = await gateway.call("/v3/kv/range", {"key": key})
                await gateway.call("/v3/lease/revoke", {"ID": found["kvs"][0]["lease"]})

        trio.run(revoke)
        wait_until(lambda: node.said("the node is registered again"), "it notices")
        wait_until(lambda: keys(etcd, cluster).value("node/n1") == before, "it has its key, also if etcd was slow meanwhile")
        assert node.shard_pids() == pids
        assert node.terminate() == 0
    assert "node/n1" not in keys(etcd, cluster).entries


def test_a_node_is_registered_by_an_address_that_others_reach(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    named = ["--data", tmp_path / "n1", "--name", "n1", "--etcd", etcd.url, "--cluster", cluster]
    assert "--advertise HOST" in refused("node", *named, "--listen", "0.0.0.0:0", code=2)
    assert "--advertise HOST" in refused("node", *named, "--listen", ":::0", code=2)
    change(etcd, cluster, lambda _: {"node/far": NodeKey("192.0.2.7:7701", "run", "0").value()})
    options = ["--advertise", "localhost", "--insecure"]
    with NamedNode(tmp_path, "n1", etcd.url, cluster, listen="0.0.0.0:0", options=options) as node:
        key = keys(etcd, cluster).value("node/n1")
        assert key is not None
        assert key["address"] == f"localhost:{node.port}"
        said = node.said("other nodes cannot reach this one: name an address of this machine with --listen")
        assert [line["other"] for line in said] == ["192.0.2.7:7701"]
        assert node.terminate() == 0


@pytest.mark.long
def test_what_replicas_cannot_keep_is_refused(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    data = ["--data", tmp_path / "n1", "--listen", "127.0.0.1:0"]
    named = [*data, "--name", "n1", "--etcd", etcd.url, "--cluster", cluster]
    for given, said in (
        ([*named, "--shards", 4], "eventstore cluster create --shards 4"),
        ([*named, "--no-broker"], "leave out --no-broker"),
        ([*named, "--lease", 61], "lease is 61"),
        ([*named, "--etcd-ca", tmp_path / "ca.pem"], "there is no file"),
        ([*data, "--etcd", etcd.url], "needs a name"),
        ([*data, "--name", "n1"], "say with --etcd"),
        ([*data, "--name", "a/b", "--etcd", etcd.url], "without /"),
    ):
        assert said in refused("node", *given, code=2)
    assert not (tmp_path / "n1").exists()
    with NamedNode(tmp_path, "n1", etcd.url, cluster), NamedNode(tmp_path, "n2", etcd.url, cluster, durability="async") as two:
        create(etcd, cluster, 1, 2)
        assert two.wait() == 2
        assert "start the node with durability sync" in two.log()
    assert "broker_durability is async" in refused("node", *named, "--set", "broker_durability=async", code=2)


def test_a_program_that_does_not_know_the_format_of_the_cluster_is_refused_by_both_numbers(
    tmp_path: Path, etcd: Etcd, cluster: str
) -> None:
    def write_format(written: int) -> None:
        change(etcd, cluster, lambda seen: {"cluster": {**(seen.value("cluster") or {}), "format": written}})

    said = r"the cluster has format 3, and this program .* knows 1 to 2"
    of_cluster = ["--etcd", etcd.url, "--cluster", cluster]
    with NamedNode(tmp_path, "n1", etcd.url, cluster, options=["--lease", "2"]) as node:
        create(etcd, cluster, 1, 1)
        wait_until(lambda: node.health()["attention"] is None, "it serves")
        write_format(3)  # by a newer node
        wait_until(lambda: re.search(said, node.attention()) is not None, "it says so")
        assert node.replicas() == [0], "it goes on with what it knows"
        assert re.search(said, refused("cluster", "status", *of_cluster, code=1))
        write_format(2)
        wait_until(lambda: node.health()["attention"] is None, "it can use the registry again")
        assert node.terminate() == 0
    write_format(3)
    named = ["--data", tmp_path / "n1", "--listen", "127.0.0.1:0", "--name", "n1", *of_cluster]
    assert re.search(said, refused("node", *named, code=1))
    assert "node/n1" not in keys(etcd, cluster).entries


def test_a_node_whose_clock_is_not_that_of_etcd_says_so_and_serves(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    def of_tomorrow(data: bytes) -> bytes:
        return re.sub(rb"(?<=Date: )[^\r]+", lambda found: later(found[0].decode()).encode(), data)

    def later(date: str) -> str:
        return formatdate(parsedate_to_datetime(date).timestamp() + 86_400, usegmt=True)

    with (
        Forwarder(etcd.url, of_tomorrow) as shifted, NamedNode(tmp_path, "n1", f"http://{shifted.leader}", cluster) as node,
        NamedNode(tmp_path, "n2", etcd.url, cluster) as other,
    ):  # fmt: skip
        create(etcd, cluster, 1, 1)
        said = r"clocks differ from etcd's: of n1 at least 8\d{4}\.\d s behind; set them by NTP"
        wait_until(lambda: re.search(said, str(node.health()["attention"])) is not None, "it says so")
        wait_until(lambda: re.search(said, str(other.health()["attention"])) is not None, "the other one says so too")
        wait_until(lambda: node.health()["healthy"], "it serves")
        shown = run("cluster", "status", "--etcd", etcd.url, "--cluster", cluster, "--interval", 0)
        assert re.search(said, shown.stderr)
        with blocking.connect(node.address) as store:
            assert store.append("a", [NewEvent("T")], 0).version == 1
        assert node.terminate() == 0


def test_a_setting_that_is_wrong_ends_the_first_start(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster, domain="nowhere:app") as node:
        create(etcd, cluster, 1, 1)
        assert node.wait() == 2
        assert "nowhere" in node.log().splitlines()[-1]
    assert "node/n1" not in keys(etcd, cluster).entries


def test_a_node_that_is_not_reached_where_it_says_names_that_in_its_health(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with NamedNode(tmp_path, "n1", etcd.url, cluster, options=["--advertise", "127.0.0.9"]) as node:
        create(etcd, cluster, 1, 1)
        wait_until(lambda: "reach this replica at 127.0.0.9:" in node.attention(), "its health says so")
        assert node.health()["degraded"]
        assert node.said("this replica may not be reached")


@pytest.mark.long
def test_who_asks_one_that_is_not_reached_to_lead_is_told_why_it_does_not(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with (
        NamedNode(tmp_path, "n1", etcd.url, cluster) as node,
        NamedNode(tmp_path, "n2", etcd.url, cluster, options=["--advertise", "127.0.0.9"]),
    ):
        create(etcd, cluster, 1, 2)

        def follows() -> bool:
            found = read_shard(0, keys(etcd, cluster).value(f"{SHARDS}0")).state
            return len(found.in_sync) == 2 and [each.get("role") for each in node.health()["shards"]] == ["leader"]

        wait_until(follows, "n1 leads, and n2 is in sync")
        why = refused("cluster", "lead", 0, "n2", "--etcd", etcd.url, "--cluster", cluster, "--wait", 60)
        assert re.search(
            r"n2 was to lead shard 0 and does not; n1 does, in epoch \d+, .* Why: n2: nothing was committed for", why
        )


def test_who_waits_for_a_restarted_node_waits_for_its_replicas_too(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    def waiting(seconds: float) -> subprocess.CompletedProcess[str]:
        return run("stats", "--wait", seconds, "--json", store=one.address)

    def copies() -> bool:
        with blocking.connect(two.address) as store:
            try:
                store.append("a", [NewEvent("Happened")], ANY, replicas="all")
            except NotEnoughReplicas:
                return False
        return True

    with NamedNode(tmp_path, "n2", etcd.url, cluster, options=["--lease", "2"]) as two:
        with NamedNode(tmp_path, "n1", etcd.url, cluster, options=["--lease", "2"]) as one:
            create(etcd, cluster, 1, 2)
            wait_until(lambda: 'eventstore_shard_up{shard="0"} 1' in two.metrics(), "it takes part")
            wait_until(copies, "both are in sync")
            rows = [node.health()["shards"][0] for node in (one, two)]
            assert {row["role"] for row in rows} == {"leader", "follower"}
            assert [type(row["degraded"]) for row in rows] == [bool, bool]
            run("cluster", "lead", 0, "n2", "--etcd", etcd.url, "--cluster", cluster)  # it could not begin to without the other
            assert one.terminate() == 0
        wait_until(lambda: two.rows()[0].error is None, "the other leads")
        lock = OsFiles().lock(tmp_path / "n1" / "shard-0" / LOCK)
        with NamedNode(tmp_path, "n1", etcd.url, cluster, options=["--lease", "2"]) as one:
            assert one.rows()[0].error is None, "the shard is served, elsewhere"
            given_up = waiting(0.1)
            assert (given_up.returncode, given_up.stdout) == (1, "")
            assert "only 0 of the node's 1 shards work within 0.1 s: shard 0: no process of it runs here" in given_up.stderr
            lock.release()
            waited = waiting(DEADLINE_SECONDS)
            figures = json.loads(waited.stdout)
            assert figures["process_id"] == two.rows()[0].pid, "of one shard, those of its leader are shown"
            assert 'eventstore_shard_up{shard="0"} 1' in one.metrics()
