"""Leadership goes to another replica at the word of a person, and clients follow."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import eventstore as es
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.handing_over import hand_over
from eventstore_cluster.nodes.registry_status import registry_status
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
WAIT_S = 60.0
EVENT = [es.NewEvent("Counted", b"1")]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, "handed") as nodes:
        yield nodes


@pytest.fixture
def options(etcd: Etcd) -> EtcdOptions:
    return EtcdOptions((etcd.url,))


class Appending:
    """A client that appends to one aggregate, each version once, until the block ends."""

    def __init__(self, three: ThreeNodes) -> None:
        self._three, self._stopped = three, threading.Event()
        self.versions: list[int] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with self._three.client() as store:
                version = store.version("a-1")
                while not self._stopped.is_set():
                    version = store.append("a-1", EVENT, version, command_id=f"c-{version}").version
                    self.versions.append(version)
        except BaseException as error:
            self.error = error

    def wait_for(self, more: int) -> None:
        goal = len(self.versions) + more
        wait_until(lambda: self.error is not None or len(self.versions) >= goal, "appends are acknowledged")

    def __enter__(self) -> Appending:
        self._thread.start()
        self.wait_for(20)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def test_a_client_that_appends_goes_on_while_leadership_goes_around(three: ThreeNodes, options: EtcdOptions) -> None:
    with Appending(three) as client:
        for _ in range(3):
            before, successor = three.leader(), three.followers()[-1]
            led = hand_over(options, "handed", 0, successor, WAIT_S)
            assert (led.node, three.leader()) == (successor, successor)
            client.wait_for(20)
            reason = registry_status(options, "handed", 0.0).shards[0].leader_reason
            assert reason == f"{before}: leadership was handed over"
            three.wait_until_in_sync()  # the one that led before follows
            assert before in three.followers()
        assert three.state().successor is None
    assert client.versions == list(range(client.versions[0], client.versions[-1] + 1))
    with three.client() as store:
        assert [event.version for event in store.read("a-1")] == list(range(1, client.versions[-1] + 1))


def test_the_one_that_leads_already_is_left_alone(three: ThreeNodes, options: EtcdOptions) -> None:
    leader, epoch = three.leader(), three.state().epoch
    assert hand_over(options, "handed", 0, leader, WAIT_S).seconds is None
    assert three.state().epoch == epoch


def test_what_cannot_lead_is_refused_by_name(three: ThreeNodes, options: EtcdOptions) -> None:
    with pytest.raises(InvalidArgument, match="there is no shard 7"):
        hand_over(options, "handed", 7, "n1", WAIT_S)
    with pytest.raises(InvalidArgument, match="node n9 keeps no replica of shard 0: n1, n2, n3 do"):
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
