"""A blocking client of a cluster on both sides of a fork: each connection, and the thread that watches the map, is new."""

from __future__ import annotations

import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from tests.client.forks.child import Child, error_of, in_child
from tests.client.forks.test_blocking_client import at_line
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import PATIENT, replace_a_frozen_leader
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
EVENT = NewEvent("Happened", b"1")


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 3) as shards:
        yield shards


def test_each_process_gets_the_answers_of_each_shard_to_its_own_requests(led: LedShards) -> None:
    names = [led.id_of(shard) for shard in range(3)]

    def commits() -> list[es.Commit]:
        return [es.Commit(name, [EVENT] * count, es.ANY) for count, name in enumerate(names, 1)]

    begin, begun = os.pipe()
    with blocking.connect(led.address) as store:
        store.append_many(commits())

        def versions() -> list[int]:
            os.read(begin, 1)
            return [store.version(name) for name in names * 20]

        children = [Child(versions) for _ in range(3)]
        os.write(begun, b"1234")
        assert versions() == [1, 2, 3] * 20
        assert [each.result() for each in children] == [[1, 2, 3] * 20] * 3

        def appends_and_reads() -> list[int]:
            stored = [outcome.version for outcome in store.append_many(commits()) if isinstance(outcome, es.Committed)]
            return [*stored, len(list(store.read_all())), len(store.aggregates())]

        assert in_child(appends_and_reads) == [2, 4, 6, 12, 3]
        in_child(store.close)
        assert [store.version(name) for name in names] == [2, 4, 6]
    os.close(begin)
    os.close(begun)


def test_a_subscription_to_all_shards_goes_on_in_the_parent_and_is_refused_in_the_child(led: LedShards) -> None:
    with blocking.connect(led.address) as store, store.subscribe(after=es.END) as items:
        assert isinstance(next(items), es.CaughtUp)

        def uses_it() -> list[str]:
            refused = error_of(lambda: next(items))
            items.close()
            with store.subscribe() as own:
                return [refused, type(next(own)).__name__]

        store.append(led.id_of(0), [EVENT], 0)
        assert type(next(items)) is es.Event
        parent = f"the subscription belongs to process {os.getpid()}, which this one was forked from"
        assert in_child(uses_it) == [f"Closed: {parent}; begin another one here, after its position", "Event"]
        store.append(led.id_of(1), [EVENT], 0)
        assert type(next(items)) is es.Event


def test_a_read_of_one_aggregate_goes_on_in_the_parent_and_is_refused_in_the_child(led: LedShards) -> None:
    mine = led.id_of(1)
    with blocking.connect(led.address) as store:
        for _ in range(4):
            store.append(mine, [NewEvent("Happened", bytes(100_000))] * 10, es.ANY)  # more than a page
        events = store.read(mine)
        assert next(events).version == 1

        def reads_on() -> list[Any]:
            refused = error_of(lambda: [each.version for each in events])
            return [refused, len(list(store.read(mine)))]

        refused, own = in_child(reads_on)
        assert refused.startswith(f"ConnectionLost: this process was forked from process {os.getpid()}")
        assert own == 40
        assert [each.version for each in events] == list(range(2, 41))


def test_a_consumer_of_all_shards_is_refused_in_the_child(led: LedShards) -> None:
    with blocking.connect(led.address) as store:
        store.broker.create_topic("orders")
        with store.consumer("workers", "orders") as consumer:
            store.topic("orders").send(b"1", key="k")
            message = next(consumer)
            assert in_child(lambda: error_of(lambda: next(consumer))).startswith("Closed: the consumer belongs to process ")
            assert in_child(lambda: error_of(message.done)).startswith("Closed: the message belongs to process ")
            message.done()
            store.topic("orders").send(b"2", key="k")
            assert next(consumer).body == b"2"


def test_the_child_learns_that_a_shard_is_led_by_another_process(led: LedShards) -> None:
    """Nothing but the map ends the wait."""
    mine = led.id_of(1)
    ready, told = os.pipe()
    go, gone = os.pipe()
    with blocking.connect(led.address, **PATIENT) as store:
        store.append(mine, [EVENT], 0, "first")

        def appends() -> int:
            os.write(told, str(store.version(mine)).encode())
            os.read(go, 1)
            return store.append(mine, [EVENT], 1, "second").version

        child = Child(appends)
        assert os.read(ready, 1) == b"1"
        led.leaders[1].freeze()  # type: ignore[union-attr]
        os.write(gone, b"1")
        replace_a_frozen_leader(led)
        assert child.result() == 2
        assert store.version(mine) == 2
    for each in (ready, told, go, gone):
        os.close(each)


def test_a_commit_of_the_child_does_not_wait_for_one_of_a_thread_that_is_not_there(led: LedShards) -> None:
    mine, done = led.id_of(1), list[Any]()
    with blocking.connect(led.address, **PATIENT) as store:
        store.append(mine, [EVENT], 0)
        leader = led.leaders[1]
        assert leader is not None
        leader.freeze()
        thread = threading.Thread(target=lambda: done.append(store.append(mine, [EVENT], es.ANY)))
        thread.start()
        assert leader.held.wait(DEADLINE_SECONDS)
        child = Child(lambda: store.append(mine, [EVENT], es.ANY).duplicate)
        led.elect(1, led.lead(1))
        assert child.result() is False
        thread.join(DEADLINE_SECONDS)
        assert len(done) == 1
        assert store.version(mine) == 3


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)], ids=["each seventh", "each"])
@pytest.mark.heavy
def test_a_fork_in_a_handler_at_any_line_is_answered_in_the_parent_and_the_child_goes_on(led: LedShards, step: int) -> None:
    mine = led.id_of(1)
    with blocking.connect(led.address) as store:
        store.append(mine, [EVENT], 0)
        for number in itertools.count(0, step):
            children = list[int]()
            result, told = os.pipe()
            answer = at_line(number, lambda: children.append(os.fork()), lambda: store.version(mine))  # noqa: B023 # in this round
            if children == [0]:  # the child: it must not run the rest of the tests
                os.write(told, "\n".join([answer, error_of(lambda: store.version(mine))]).encode())
                os._exit(0)
            os.close(told)
            assert answer == "returned 1"
            if not children:
                break
            ends = select.select([result], [], [], DEADLINE_SECONDS)[0]
            os.kill(children[0], signal.SIGKILL)
            os.waitpid(children[0], 0)
            refused, following = os.read(result, 65536).decode().split("\n")
            os.close(result)
            assert ends, f"forked at line {number} it waits without end"
            assert refused == "returned 1" or refused.startswith("ConnectionLost: this process was forked from process ")
            assert following == "returned 1"
        assert number > 20


def test_children_of_a_process_whose_threads_are_in_calls_have_calls_of_their_own(led: LedShards) -> None:
    names, over = [led.id_of(shard) for shard in range(3)], threading.Event()

    def appends(store: blocking.BlockingStore, name: str) -> None:
        while not over.is_set():
            store.append(name, [EVENT], es.ANY)

    with blocking.connect(led.address) as store:
        threads = [threading.Thread(target=appends, args=(store, name)) for name in names]
        for each in threads:
            each.start()
        try:
            own = [led.id_of(shard, 1) for shard in range(3)]
            children = [Child(lambda: [store.append(name, [EVENT], es.ANY).duplicate for name in own]) for _ in range(10)]
            assert [each.result() for each in children] == [[False] * 3] * 10
        finally:
            over.set()
            for each in threads:
                each.join(DEADLINE_SECONDS)
        assert [store.version(name) for name in own] == [10] * 3
        assert store.append(names[0], [EVENT], es.ANY).version > 1


def test_a_child_that_ends_in_order_hangs_up_on_nobody(led: LedShards, tmp_path: Path) -> None:
    """With everything that Python does at its end: finalizers, and what is called at the exit."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nimport eventstore as es\n"
        "with es.blocking.connect(sys.argv[1]) as store:\n"
        "    names = sys.argv[2:]\n"
        "    store.append_many([es.Commit(name, [es.NewEvent('Happened', b'1')], 0) for name in names])\n"
        "    items = store.subscribe()\n"
        "    next(items)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        sys.exit(sum(map(store.version, names)) - 3)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "    assert list(map(store.version, names)) == [1, 1, 1]\n"
        "    assert [each.broker.connections for each in store.shards.values()] == [1, 1, 1]\n"
        "    assert type(next(items)).__name__ == 'Event'\n"
    )
    command = [sys.executable, "-W", "error", str(program), led.address, *(led.id_of(shard) for shard in range(3))]
    assert os.spawnv(os.P_WAIT, sys.executable, command) == 0
