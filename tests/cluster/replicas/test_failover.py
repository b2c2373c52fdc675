"""What clients and operators see when a leader, a follower, or its folder is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import trio

import eventstore as es
from eventstore import blocking
from eventstore.errors import InvalidArgument, NotEnoughReplicas
from eventstore_cluster.nodes.accepting_loss import accept_loss, candidate
from eventstore_cluster.nodes.registry_status import registry_status
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.status import ShardRow, cluster_status
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import LEASE_S, NAMES, ThreeNodes
from tests.cluster.test_moved_leader import PATIENT
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def event(number: int, filler: int = 0) -> list[es.NewEvent]:
    return [es.NewEvent("Counted", {"number": number, "filler": "x" * filler})]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    settings = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024, "broker_chunk_size_bytes": 16 * 1024}
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, "failover", **settings) as nodes:
        yield nodes


def test_what_was_acknowledged_is_there_after_the_leader_was_killed_and_clients_go_on(three: ThreeNodes) -> None:
    leader = three.leader()
    with three.client() as store:
        store.broker.create_topic("orders", 2, if_missing=True)
        for number in range(50):
            assert store.append("f-1", event(number), number, command_id=f"c-{number}").version == number + 1
            store.topic("orders").send(b"%d" % number)
        three.kill(leader)
        assert store.append("f-1", event(50), 50).version == 51  # the same client
        assert [item.version for item in store.read("f-1")] == list(range(1, 52))
        assert store.append("f-1", event(7), 7, command_id="c-7").duplicate
        assert [info.name for info in store.broker.topics()] == ["orders"]
        assert three.leader() != leader
        three.start(leader)
        three.wait_until_in_sync()
        store.append("f-1", event(51), 51)


@pytest.mark.long
def test_a_follower_whose_folder_is_gone_is_copied_again_over_many_files(three: ThreeNodes) -> None:
    follower = three.followers()[0]
    with three.client() as store:
        store.append_many([es.Commit(f"b-{each}", event(each, 500), es.ANY) for each in range(600)])
        three.kill(follower)
        three.remove_folder(follower)
        store.append_many([es.Commit(f"b-{each}", event(each, 500), es.ANY) for each in range(300)])
        three.start(follower)
        three.wait_until_in_sync()
        events = three.folder / follower / "shard-0" / "events"
        assert len(list(events.glob("*.events"))) > 5
        wait_until(lambda: len(list(events.glob("*.index"))) > 4, "it sorts what is committed")
        others = [name for name in three.nodes if name != follower]
        for name in others:  # the copy alone is left of the three that had it before
            if name == three.leader():
                three.kill(name)
        assert sum(1 for _ in store.read_all(aggregate_prefix="b-")) == 900
    for name in others:
        if name not in three.nodes:
            three.start(name)
    three.wait_until_in_sync()


def test_a_paused_leader_is_deposed_and_follows_when_it_goes_on(three: ThreeNodes) -> None:
    leader = three.leader()
    with three.client(three.followers()) as store:
        with three.paused(leader):
            before = store.version("a-1")
            assert store.append("a-1", event(0), before).version == before + 1
            successor = three.leader()
            assert successor != leader
        three.wait_until_in_sync()
        assert store.version("a-1") == before + 1


def test_when_the_machine_hangs_that_leads_and_is_listed_first_clients_of_all_kinds_go_on(three: ThreeNodes) -> None:
    """No timeout ends their waits: they hang if only the first address is asked."""
    leader = three.leader()
    text = three.addresses([leader, *three.followers()])

    async def use() -> None:
        async with es.connect(text, **PATIENT) as store, store.subscribe(aggregate_id="h-1") as stream:
            await store.broker.create_topic("hang", 1)
            async with store.consumer("g", "hang") as consumer:
                assert isinstance(await anext(stream), es.CaughtUp)
                with blocking.connect(text, **PATIENT) as other, three.hung(leader):
                    assert (await store.append("h-1", event(0), 0)).version == 1
                    item = await anext(stream)
                    assert isinstance(item, es.Event)
                    await store.topic("hang").send(b"1")
                    assert (await anext(consumer)).body == b"1"
                    assert other.append("h-1", event(1), 1).version == 2
                    with blocking.connect(text, **PATIENT) as third:
                        assert third.version("h-1") == 2
                    assert cluster_status(text, 0).shards[0].error is None

    trio.run(use)
    three.wait_until_in_sync()


@pytest.mark.long
def test_too_few_replicas_refuse_appends_by_name_and_answer_reads(three: ThreeNodes) -> None:
    leader, followers = three.leader(), three.followers()
    with three.client([leader]) as store:
        store.broker.create_topic("orders", 2, if_missing=True)
        before, first = store.version("a-1"), store.append("a-0", event(0), 0, "c-0")
        # what a process told its node last is shown for a moment longer: an append that is taken would wait for a follower
        wait_until(lambda: "appends are refused" not in three.nodes[leader].attention(), "it says that they are back")
        for name in followers:
            three.kill(name)
        wait_until(lambda: "appends are refused" in three.nodes[leader].attention(), "it says that replicas are missing")
        with pytest.raises(NotEnoughReplicas, match=f"only {leader} answer") as refused:
            store.append("a-2", event(0), es.ANY)
        assert refused.value.needed == 2
        again = store.append("a-0", event(0), 0, "c-0")
        assert again._replace(durability=0) == first._replace(duplicate=True, durability=0), "it was stored before"
        with pytest.raises(NotEnoughReplicas):
            store.append("a-0", event(1), 0, "c-1")
        outcomes = store.append_many([es.Commit("a-2", event(0), 0), es.Commit("a-0", event(0), 0, "c-0")])
        assert isinstance(outcomes[0], NotEnoughReplicas)
        assert isinstance(outcomes[1], es.Committed)
        with pytest.raises(NotEnoughReplicas):
            store.topic("orders").send(b"1")
        assert store.version("a-1") == before
        assert three.leader() == leader
        three.start(followers[0])
        three.wait_until_in_sync(leader, followers[0])
        wait_until(lambda: "refused" not in three.nodes[leader].attention(), "it takes appends again")
        store.append("a-2", event(0), 0)
        three.start(followers[1])
    three.wait_until_in_sync()


@pytest.mark.long
def test_operators_see_since_when_and_why_a_shard_has_its_leader_and_who_is_behind(three: ThreeNodes, etcd: Etcd) -> None:
    def shown() -> ShardRow:
        return registry_status(EtcdOptions((etcd.url,)), "failover", 0).shards[0]

    killed = three.leader()
    before = shown()
    three.kill_shard(killed)
    wait_until(lambda: (shown().node or killed) != killed and shown().error is None, "another one leads")
    after, leader = shown(), three.leader()
    assert after.leader_reason == f"{killed}: its process was ended by SIGKILL"
    assert str(before.leader_since) <= str(after.leader_since)
    assert set(after.behind or ()) <= set(NAMES) - {leader}
    counted = 'eventstore_shard_leader_changes_total{shard="0",reason="its process was ended by SIGKILL"} 1'
    assert counted in three.nodes[leader].metrics().splitlines()
    three.wait_until_in_sync()
    follower = next(name for name in NAMES if name != leader)
    with three.client() as store, three.paused(follower):
        store.append_many([es.Commit("a-4", event(0, 1_000), es.ANY)])  # answered when the paused one is out of the set
        row = shown()
        assert (row.behind or {})[follower].bytes > 0
        assert (row.behind or {})[follower].seconds > 0
    three.wait_until_in_sync()
    three.stop(leader)
    wait_until(lambda: (shown().node or leader) != leader, "another one leads")
    assert shown().leader_reason == f"{leader}: it was stopped"
    three.start(leader)
    three.wait_until_in_sync()
    leader = three.leader()
    three.nodes[leader].process.kill()  # its shards see that, and stop in order
    wait_until(lambda: (shown().node or leader) != leader, "another one leads")
    assert shown().leader_reason == f"{leader}: its node was killed, or crashed"
    three.nodes[leader].kill()
    three.start(leader)
    three.wait_until_in_sync()


@pytest.mark.long
def test_a_copy_of_a_folder_that_comes_back_is_a_stranger(three: ThreeNodes) -> None:
    follower = three.followers()[0]
    member = next(each for each in three.state().in_sync if each.node == follower)
    three.stop(follower)
    copy = three.folder / "copy"
    shutil.copytree(three.folder / follower, copy)
    three.remove_folder(follower)
    with three.client() as store:
        store.append("a-3", event(0), es.ANY)  # after its time to keep up is over, without it
    shutil.move(copy, three.folder / follower)
    three.start(follower)
    three.wait_until_in_sync()
    assert member not in three.state().in_sync


@pytest.mark.long
def test_loss_is_accepted_by_name_only(three: ThreeNodes, etcd: Etcd) -> None:
    options = EtcdOptions((etcd.url,))
    last = three.followers()[1]
    with pytest.raises(InvalidArgument, match="leads already"):
        candidate(options, "failover", 0, three.leader())
    three.kill(last)
    wait_until(lambda: last not in three.running(), "its lease has run out")
    with pytest.raises(InvalidArgument, match="no process of a replica"):
        candidate(options, "failover", 0, last)
    with three.client() as store:
        before = store.version("a-1")
        store.append("a-1", event(0), before)
        wait_until(lambda: last not in {each.node for each in three.state().in_sync}, "it is not in sync any more")
        store.append("a-1", event(1), before + 1)
    for name in list(three.nodes):
        three.kill(name)
        three.remove_folder(name)
    three.start(last)
    wait_until(lambda: three.running() == {last}, "it runs, and nobody else")
    generation = three.state().generation
    accept_loss(options, "failover", candidate(options, "failover", 0, last), LEASE_S)
    for name in ("n1", "n2", "n3"):
        if name not in three.nodes:
            three.start(name)
    three.wait_until_in_sync()
    assert three.state().generation == generation + 1
    with three.client() as store:
        assert store.version("a-1") in (before, before + 1)  # the rest is lost, as was accepted
