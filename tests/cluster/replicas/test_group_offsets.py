"""Offsets of a group after a change of leader (for a hand-over see `test_hand_over`): a node that stops loses none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventstore.client.blocking.store import BlockingStore
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.long]
NEVER_S = 3600.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    """Brokers that save offsets only when they have to."""
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, "offsets", broker_offsets_interval_s=NEVER_S) as nodes:
        yield nodes


def send(store: BlockingStore, count: int) -> None:
    store.broker.create_topic("orders", 1, if_missing=True)
    store.topic("orders").send_many([b"order"] * count)


def consume(store: BlockingStore, count: int) -> None:
    """Consumes messages, and commits them when it ends."""
    with store.consumer("billing", "orders") as consumer:
        for _ in range(count):
            next(consumer).done()


def offset(store: BlockingStore) -> int:
    (queue,) = store.broker.group("billing").queues
    return queue.offset


def test_offsets_that_were_committed_are_there_after_the_node_of_the_leader_was_stopped(three: ThreeNodes) -> None:
    with three.client() as store:
        send(store, 30)
        consume(store, 20)
        before, leader = offset(store), three.leader()
        assert before >= 20
        three.stop(leader)
        wait_until(lambda: three.leader() != leader, "another one leads")
        assert offset(store) == before
    three.start(leader)
    three.wait_until_in_sync()


def test_an_offset_that_was_reset_is_there_after_the_leader_was_killed(three: ThreeNodes) -> None:
    with three.client() as store:
        send(store, 30)
        consume(store, 20)
        (done,) = store.broker.reset("billing", "orders", 5)
        leader = three.leader()
        three.kill(leader)
        wait_until(lambda: three.leader() != leader, "another one leads")
        assert offset(store) == done.offset == 5
    three.start(leader)
    three.wait_until_in_sync()
