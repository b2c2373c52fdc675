"""A shard is split while it is written to: on three nodes, over a real etcd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore.client.blocking.store import BlockingStore
from eventstore.records.slots import slot_of
from eventstore.store.data_folder import read_event_folder
from eventstore.store.verification import verify
from eventstore_cluster.nodes.splitting.splitting import split, wait_until_split
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replicated_keys import read_leader, read_shard
from tests.cluster.background_client import BackgroundClient
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
WAIT_S = 60.0
EVENT = [es.NewEvent("Counted", b"1")]


class Writing(BackgroundClient):
    """A client that appends to many aggregates, each version once and every tenth command twice."""

    def __init__(self, three: ThreeNodes, aggregates: int = 64) -> None:
        super().__init__(three.client, first=100)
        self.versions = {f"w-{number}": 0 for number in range(aggregates)}
        self.longest_s = 0.0

    def append(self, store: BlockingStore) -> None:
        while not self.stopped.is_set():
            for name, version in self.versions.items():
                began = time.monotonic()
                again = 2 if self.appended % 10 == 0 else 1
                for _ in range(again):
                    done = store.append(name, EVENT, version, command_id=f"{name}-{version}")
                    assert done.version == version + 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.versions[name] = version + 1
                self.appended += 1


def check_stored(three: ThreeNodes, versions: dict[str, int]) -> None:
    """Each acknowledged event is stored once, and handed out once to who reads all."""
    wanted = {(name, version) for name, last in versions.items() for version in range(1, last + 1)}
    with three.client() as store:
        for name, last in versions.items():
            assert [event.version for event in store.read(name)] == list(range(1, last + 1))
        every = [(event.aggregate_id, event.version) for event in store.read_all() if event.aggregate_id in versions]
    assert len(every) == len(set(every))
    assert set(every) == wanted


def check_folders(three: ThreeNodes, shards: int) -> None:
    """The folders of all replicas are sound, and their completed files are the same records."""
    names = list(three.nodes)
    for name in names:
        three.stop(name)
    for shard in range(shards):
        checksums = []
        for name in names:
            folder = three.folder / name / f"shard-{shard}"
            report = verify(folder)
            assert not report.findings, report.findings
            events = read_event_folder(OsFiles(), folder)
            checksums.append([(each.number, each.checksum, each.end) for each in events.headers() if each.completed])
        assert checksums[0] == checksums[1] == checksums[2]


def settled(three: ThreeNodes, shards: int) -> None:
    three.shards = shards
    three.wait_until_in_sync()


def check_starts(three: ThreeNodes) -> None:
    """No replica's process has ended: the shards would have been served again seconds later, without a word to clients."""
    found = {(name, each["shard"]): each["starts"] for name, node in three.nodes.items() for each in node.health()["shards"]}
    assert found == dict.fromkeys(found, 1)


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd, cluster: str) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, cluster) as nodes:
        yield nodes


def test_a_quiet_shard_is_split(three: ThreeNodes, etcd: Etcd, cluster: str) -> None:
    options = EtcdOptions((etcd.url,))
    with three.client() as store:
        for number in range(50):
            store.append(f"a-{number}", EVENT, 0)
        asked = split(options, cluster, 0, 2)
        wait_until_split(options, cluster, asked, WAIT_S)
        for number in range(50):
            assert store.append(f"a-{number}", EVENT, 1).version == 2
            assert [event.version for event in store.read(f"a-{number}")] == [1, 2]
        known = store.cluster_map()
        store.broker.create_topic("late", 1)
        assert [shard.broker.topics() for shard in store.shards.values()] == [[("late", 1, 1)]] * 2
    assert [shard.slots for shard in known.shards] == [((0, 2047),), ((2048, 4095),)]
    assert known.layout == 2
    assert {known.owners[slot_of(f"a-{number}")] for number in range(50)} == {0, 1}
    check_starts(three)


def test_a_split_says_first_which_commits_it_may_refuse(three: ThreeNodes, etcd: Etcd, cluster: str) -> None:
    with three.client() as store:
        store.commit([es.Write(f"{name}{{t}}", EVENT, 0) for name in "ab"])
        for number in range(3):
            store.commit([es.Write(f"{name}-{number}", EVENT, 0) for name in "ab"])
        assert store.stats()["joint_commits_apart"] == 3
    done = run_cluster(etcd, cluster, "split", "0", "--json")
    assert json.loads(done.stdout)["joint_commits_apart"] == 3
    assert "3 of 4 commits of several aggregates since the leader's start had aggregates without a common text" in done.stderr
    assert "CrossShard" in done.stderr


@pytest.mark.long
def test_the_transaction_that_gives_slots_away_says_who_leads_each_new_shard(
    three: ThreeNodes, etcd: Etcd, cluster: str
) -> None:
    epoch = three.state().epoch
    done = json.loads(run_cluster(etcd, cluster, "split", "0", "--into", "3", "--json").stdout)
    assert (done["keeps"], done["gives"]) == ([[0, 1364]], {"1": [[1365, 2729]], "2": [[2730, 4095]]})
    assert done["seconds"] > 0
    seen = keys(etcd, cluster)
    for shard in (1, 2):  # so nothing was written to its key, or for an election, before it served
        assert seen.revision_of(f"shard/{shard}") == seen.revision_of(f"leader/{shard}") == seen.revision_of("cluster")
        key = read_shard(shard, seen.value(f"shard/{shard}") or {})
        leader = read_leader(seen.entries[f"leader/{shard}"])
        assert leader is not None
        assert (key.state.epoch, key.state.leader) == (epoch + 1, leader.member)
        assert leader.member.node == key.state.replicas[0]
    settled(three, 3)


@pytest.mark.long
def test_ctrl_c_ends_the_watching_of_a_split_and_not_the_split(three: ThreeNodes, etcd: Etcd, cluster: str) -> None:
    follower = three.followers()[0]
    node = three.nodes[follower].process.pid
    os.kill(node, signal.SIGSTOP)  # so its clone is waited for
    try:
        command = ["cluster", "split", "0", "--etcd", etcd.url, "--cluster", cluster]
        with subprocess.Popen([sys.executable, "-m", "eventstore", *command], stderr=subprocess.PIPE, text=True) as watching:
            wait_until(lambda: three.state().split, "it is asked for")
            watching.send_signal(signal.SIGINT)
            _, said = watching.communicate()
        assert watching.returncode == 130
        assert "continues" in said
        assert three.state().split == (1,)
        (plan,) = json.loads(run_cluster(etcd, cluster, "plans", "--json").stdout)
        assert (plan["shard"], plan["split"], plan["copies"]) == (0, [1], [])
        assert f"shard 1 on {follower} has not begun" in plan["does"]
        assert json.loads(run_cluster(etcd, cluster, "pause", "--json").stdout)["shards"] == [], "splits are not paused"
        assert json.loads(run_cluster(etcd, cluster, "split", "0", "--call-off", "--json").stdout) == {
            "shard": 0,
            "called_off": [1],
        }
        assert three.state().split == ()
        assert run_cluster(etcd, cluster, "plans").stdout == "Nothing is under way.\n"
    finally:
        os.kill(node, signal.SIGCONT)


@pytest.mark.long
def test_a_shard_is_split_twice_and_into_many_while_it_is_written_to(three: ThreeNodes, etcd: Etcd, cluster: str) -> None:
    options = EtcdOptions((etcd.url,))
    with Writing(three) as client:
        for shard, parts in ((0, 2), (1, 4), (0, 2)):
            wait_until_split(options, cluster, split(options, cluster, shard, parts), WAIT_S)
            client.wait_for(100)
    print(f"longest append {client.longest_s:.3f} s of {client.appended}")
    settled(three, 6)
    check_starts(three)
    check_stored(three, client.versions)
    check_folders(three, 6)


@pytest.mark.long
def test_a_shard_whose_small_files_are_not_sorted_is_split(
    tmp_path_factory: pytest.TempPathFactory, etcd: Etcd, cluster: str
) -> None:
    options, small = EtcdOptions((etcd.url,)), {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
    with ThreeNodes(tmp_path_factory.mktemp("unsorted"), etcd, cluster, sort="false", **small) as three:
        versions = {f"a-{number}": 20 for number in range(60)}
        with three.client() as store:
            store.append_many([es.Commit(each, [es.NewEvent("Counted", bytes(1_000))], es.ANY) for each in [*versions] * 20])
        assert sum(1 for _ in (three.folder / three.leader() / "shard-0" / "events").glob("*.events")) > 10
        wait_until_split(options, cluster, split(options, cluster, 0, 2), WAIT_S)
        settled(three, 2)
        check_stored(three, versions)
        check_folders(three, 2)


@pytest.mark.long
def test_a_replica_that_was_away_during_a_split_is_fetched(three: ThreeNodes, etcd: Etcd, cluster: str) -> None:
    options = EtcdOptions((etcd.url,))
    away = three.followers()[0]
    with Writing(three) as client:
        three.kill(away)
        client.wait_for(100)
        wait_until_split(options, cluster, split(options, cluster, 0, 2), WAIT_S)
        client.wait_for(100)
        three.start(away)
        settled(three, 2)
    check_stored(three, client.versions)
    check_folders(three, 2)


@pytest.mark.long
@pytest.mark.parametrize("when", ["it is asked for", "the slots are given away"])
def test_a_split_goes_on_when_etcd_is_back(tmp_path: Path, when: str) -> None:
    cluster = "pausing"
    with running(tmp_path) as (etcd,), ThreeNodes(tmp_path, etcd, cluster) as three, Writing(three) as client:
        client.wait_for(100)
        options = EtcdOptions((etcd.url,))
        asked = split(options, cluster, 0, 2)
        if when == "the slots are given away":
            wait_until(lambda: not three.state().split, when)
        etcd.send(signal.SIGSTOP)
        away = "the registry cannot be used since "
        wait_until(lambda: all(node.attention().startswith(away) for node in three.nodes.values()), "etcd is away")
        etcd.send(signal.SIGCONT)
        wait_until_split(options, cluster, asked, WAIT_S)
        client.wait_for(100)
        settled(three, 2)
        client.stop()
        check_stored(three, client.versions)
        check_folders(three, 2)


@pytest.mark.long
def test_leaders_that_are_killed_while_their_shard_is_split_leave_it_whole_or_split(
    three: ThreeNodes, etcd: Etcd, cluster: str
) -> None:
    options = EtcdOptions((etcd.url,))
    with Writing(three) as client:
        asked = split(options, cluster, 0, 2)
        three.kill_shard(three.leader())
        wait_until_split(options, cluster, asked, WAIT_S)
        three.kill_shard(three.leader(0))
        three.kill_shard(three.leader(1), 1)
        client.wait_for(100)
        second = split(options, cluster, 1, 2)
        wait_until(lambda: not three.state(1).split, "the slots are given away")
        three.kill_shard(three.leader(1), 1)
        wait_until_split(options, cluster, second, WAIT_S)
        client.wait_for(100)
    settled(three, 3)
    check_stored(three, client.versions)
    check_folders(three, 3)
