"""Leadership goes to another replica at the word of a person, and clients follow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.handing_over import hand_over
from eventstore_cluster.nodes.registry_status import registry_status
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.background_client import BackgroundClient
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.test_group_offsets import NEVER_S, consume, offset, send
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
WAIT_S = 60.0
EVENT = [es.NewEvent("Counted", b"1")]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, "handed", broker_offsets_interval_s=NEVER_S) as nodes:
        yield nodes


@pytest.fixture
def options(etcd: Etcd) -> EtcdOptions:
    return EtcdOptions((etcd.url,))


class Appending(BackgroundClient):
    """A client that appends to one aggregate, each version once."""

    def __init__(self, three: ThreeNodes) -> None:
        super().__init__(three.client)
        self.versions: list[int] = []

    def append(self, store: BlockingStore) -> None:
        version = store.version("a-1")
        while not self.stopped.is_set():
            version = store.append("a-1", EVENT, version, command_id=f"c-{version}").version
            self.versions.append(version)
            self.appended += 1


@pytest.mark.long
def test_a_client_that_appends_goes_on_while_leadership_goes_around(three: ThreeNodes, options: EtcdOptions) -> None:
    with Appending(three) as client:
        for _ in range(3):
            before, successor = three.leader(), three.followers()[-1]
            led = hand_over(options, "handed", 0, successor, WAIT_S)
            assert (led.node, three.leader()) == (successor, successor)
            client.wait_for(20)
            reason = registry_status(options, "handed", 0.0).shards[0].leader_reason
            assert reason == f"{before}: leadership was handed over"
            ended = three.nodes[before].said("this run of the replica ends")[-1]
            assert (ended["reason"], ended["level"]) == ("leadership was handed over", "info")
            three.wait_until_in_sync()  # the one that led before follows
            assert before in three.followers()
        assert three.state().successor is None
    assert client.versions == list(range(client.versions[0], client.versions[-1] + 1))
    with three.client() as store:
        assert [event.version for event in store.read("a-1")] == list(range(1, client.versions[-1] + 1))


@pytest.mark.long
def test_a_successor_sorts_a_large_file_before_it_leads(three: ThreeNodes, options: EtcdOptions) -> None:
    before, successor = three.leader(), three.followers()[0]
    large = [es.NewEvent("Large", bytes(1024 * 1024))] * 3
    with three.client() as store:
        for number in range(2):
            store.append("large", large, number * 3, command_id=f"large-{number}")
        assert hand_over(options, "handed", 0, successor, WAIT_S).node == successor
        (begun, *_) = three.nodes[before].said("a new event file is begun, so that the one before can be sorted")
        assert begun["epoch"] == three.state().epoch - 1
        assert (three.folder / successor / "shard-0" / "events" / "0000000001.index").exists()
        assert [event.version for event in store.read("large")] == list(range(1, 7))
        assert store.append("large", EVENT, 6).version == 7
    three.wait_until_in_sync()


def test_a_group_is_where_it_was_after_leadership_was_handed_over(three: ThreeNodes, options: EtcdOptions) -> None:
    with three.client() as store:
        send(store, 30)
        consume(store, 20)
        before = offset(store)
        assert before >= 20
        successor = three.followers()[0]
        assert hand_over(options, "handed", 0, successor, WAIT_S).node == successor
        assert offset(store) == before
    three.wait_until_in_sync()


def test_the_one_that_leads_already_is_left_alone(three: ThreeNodes, options: EtcdOptions) -> None:
    leader, epoch = three.leader(), three.state().epoch
    assert hand_over(options, "handed", 0, leader, WAIT_S).seconds is None
    assert three.state().epoch == epoch


def test_the_one_that_has_just_led_is_waited_for_until_it_can_lead_again(three: ThreeNodes, options: EtcdOptions) -> None:
    before, successor = three.leader(), three.followers()[0]
    for node in (successor, before):
        assert hand_over(options, "handed", 0, node, WAIT_S).node == node
    three.wait_until_in_sync()


@pytest.mark.long
def test_what_cannot_lead_is_refused_by_name(three: ThreeNodes, options: EtcdOptions) -> None:
    with pytest.raises(InvalidArgument, match="there is no shard 7"):
        hand_over(options, "handed", 7, "n1", WAIT_S)
    with pytest.raises(InvalidArgument, match="node 'n9' keeps no replica of shard 0: n1, n2, n3 do"):
        hand_over(options, "handed", 0, "n9", WAIT_S)
    follower = three.followers()[0]
    three.kill(follower)
    wait_until(lambda: follower not in three.running(), "its lease has run out")
    with pytest.raises(InvalidArgument, match=f"no process of a replica of shard 0 runs on node {follower}"):
        hand_over(options, "handed", 0, follower, WAIT_S)
    three.start(follower)
    three.wait_until_in_sync()


def test_what_is_asked_for_is_done_after_whoever_asked_is_gone(three: ThreeNodes, options: EtcdOptions) -> None:
    leader, successor = three.leader(), three.followers()[0]
    with pytest.raises(EventStoreError, match=f"not handed over within 0 s.*cluster lead 0 {leader}` takes that"):
        hand_over(options, "handed", 0, successor, 0.0)
    wait_until(lambda: three.leader() == successor, "it leads")
    three.wait_until_in_sync()


@pytest.mark.long
def test_a_replica_that_hangs_is_not_handed_leadership_and_named(three: ThreeNodes, options: EtcdOptions) -> None:
    leader, (hangs, third) = three.leader(), three.followers()
    epoch = three.state().epoch
    with three.paused(hangs):
        with pytest.raises(EventStoreError, match=f"replica on {hangs} has not answered the leader on {leader} for"):
            hand_over(options, "handed", 0, hangs, 3.0)
        assert (three.leader(), three.state().epoch) == (leader, epoch), f"{third} does not lead either"
        wait_until(lambda: hangs not in {each.node for each in three.state().in_sync}, "it is taken out of the set")
        assert three.leader() == leader
    wait_until(lambda: three.leader() == hangs, "it leads as soon as it keeps up")
    three.wait_until_in_sync()
