"""A leader that cannot commit makes nothing final: what it was elected with may have to be cut back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import pytest

import eventstore as es
from eventstore_cluster.nodes.handing_over import hand_over
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
_LARGE = [es.NewEvent("Large", b"x" * 20_000)]
_SMALL = [es.NewEvent("Small", b"1")]
_LOST = 16
_ELECTIONS = 4


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    settings = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, "uncommitted", **settings) as nodes:
        yield nodes


def write_unanswered(three: ThreeNodes, leader: str) -> list[threading.Thread]:
    """Has clients of the leader alone write what nobody acknowledges, over several files."""

    def write(number: int) -> None:
        with suppress(es.EventStoreError), es.blocking.connect(three.addresses([leader]), reconnect_timeout=0.5) as store:
            if number:
                store.append(f"lost-{number}", _LARGE, 0, f"lost-{number}")
            else:
                store.topic("orders", resend=False).send_many([es.NewMessage(b"lost")] * 100)

    writing = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(_LOST)]
    for each in writing:
        each.start()
    return writing


@pytest.mark.long
def test_what_was_never_committed_is_cut_back_at_a_replica_that_was_elected_with_it(three: ThreeNodes, etcd: Etcd) -> None:
    with three.client() as store:
        store.broker.create_topic("orders", 1)
        store.topic("orders").send_many([es.NewMessage(b"kept")] * 20)
        store.append("kept", _SMALL, 0)
    three.wait_until_in_sync()
    first = three.leader()
    second, third = three.followers()
    stopped = three.shard_pid(third)
    os.kill(stopped, signal.SIGSTOP)
    writing = write_unanswered(three, first)
    events = three.folder / second / "shard-0" / "events"
    wait_until(lambda: len(list(events.glob("*.events"))) > 4, "the second replica has what is not acknowledged")
    three.kill(first)
    for each in writing:
        each.join()
    for epoch in range(2, 2 + _ELECTIONS):  # it is elected, and cannot commit alone
        wait_until(lambda epoch=epoch: three.state().epoch >= epoch, "the second replica is elected")  # type: ignore[misc]
        three.kill_shard(second)
    three.kill(second)
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: (leader := three.state().leader) is not None and leader.node == third, "the third one is elected")
    three.start(second)
    with three.client() as store:
        assert three.leader() == third
        for number in range(30):
            store.append(f"new-{number}", _SMALL, 0)
            store.topic("orders").send(b"new")
    three.wait_until_in_sync(second, third)  # the second replica was cut back
    three.start(first)
    three.wait_until_in_sync()
    hand_over(EtcdOptions((etcd.url,)), "uncommitted", 0, second, 60.0)
    with three.client() as store:
        assert sum(event.type == "Small" for event in store.read_all()) == 31
        assert [store.version(f"lost-{number}") for number in range(1, _LOST)] == [0] * (_LOST - 1)
        with store.consumer("billing", "orders") as consumer:
            found = [message.body for message in islice(consumer, 50)]
    assert found == [b"kept"] * 20 + [b"new"] * 30
