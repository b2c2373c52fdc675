"""The timeout of a client, which each call has that is given none: no call waits for ever, whatever is down."""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from eventstore.client import limit
from tests.client.test_connecting import closed_port, loops
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import PATIENT, Runner
from tests.forwarder import Forwarder
from tests.server.commands.tallies import Add
from tests.server.work.worker_thread import WorkerThread
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

EVENT = NewEvent("Happened", b"1")
SHORT = {**PATIENT, "timeout": 0.1}
CALLS: list[Callable[[Any], Any]] = [
    lambda store: store.append("a", [EVENT], es.ANY),
    lambda store: store.version("a"),
    lambda store: store.send(Add("a")),
    lambda store: store.find_command("a", "c"),
    lambda store: store.topic("t").send(b"1"),
    lambda store: store.broker.topics(),
    lambda store: store.stats(),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as thread:
        yield thread


@pytest.fixture
def way(server: ServerThread) -> Iterator[Forwarder]:
    with Forwarder(server.address) as forwarder:
        yield forwarder


def test_a_blocking_call_has_ten_seconds_and_an_async_one_no_limit_unless_it_is_said() -> None:
    assert inspect.signature(blocking.connect).parameters["timeout"].default == 10.0
    assert inspect.signature(es.connect).parameters["timeout"].default is None


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_a_timeout_that_is_none_is_refused(wrong: float) -> None:
    for connect in (es.connect, blocking.connect):
        with pytest.raises(es.InvalidArgument, match=r"timeout is .* seconds, the least is 0"):
            connect("tcp://127.0.0.1:1", timeout=wrong)  # type: ignore[operator] # of either


@loops
def test_each_call_of_an_async_client_ends_within_it(run: Runner, way: Forwarder) -> None:
    async def use() -> None:
        async with es.connect(way.address, **SHORT) as store:
            way.freeze()
            for call in CALLS:
                with pytest.raises(es.TimedOut, match=r"not answered within 0.1 s"):
                    await call(store)
            with pytest.raises(es.TimedOut):
                [_ async for _ in store.read_all()]
            (outcome,) = await store.append_many([es.Commit("a", [EVENT], es.ANY)])
            assert isinstance(outcome, es.TimedOut)
        assert not limit.active

    run(use)


def test_each_call_of_a_blocking_client_ends_within_it(way: Forwarder) -> None:
    with blocking.connect(way.address, **SHORT) as store:
        way.freeze()
        for call in CALLS:
            with pytest.raises(es.TimedOut, match=r"not answered within 0.1 s"):
                call(store)
        with pytest.raises(es.TimedOut):
            list(store.read_all())
        (outcome,) = store.append_many([es.Commit("a", [EVENT], es.ANY)])
        assert isinstance(outcome, es.TimedOut)
    assert not limit.active


def test_each_call_of_a_blocking_client_of_shards_ends_within_it(tmp_path: Path) -> None:
    with LedShards(tmp_path, 2) as led, blocking.connect(led.address, **SHORT) as store:
        other = led.id_of(1)
        store.append(other, [EVENT], 0, timeout=DEADLINE_SECONDS)
        led.leaders[1].freeze()  # type: ignore[union-attr]
        for call in (
            lambda: store.append(other, [EVENT], es.ANY),
            lambda: store.send(Add(other)),
            lambda: store.version(other),
            lambda: store.broker.topics(),
            lambda: list(store.read(other)),
        ):
            with pytest.raises(es.TimedOut, match=r"not answered within 0.1 s"):
                call()
        (outcome,) = store.append_many([es.Commit(other, [EVENT], es.ANY)])
        assert isinstance(outcome, es.TimedOut)


def test_a_call_that_is_given_a_timeout_of_its_own_has_that(server: ServerThread) -> None:
    passes, versions = threading.Event(), list[int]()
    passes.set()
    with (
        Forwarder(server.address, lambda data: data if passes.wait(DEADLINE_SECONDS) else b"") as way,
        blocking.connect(way.address, **SHORT) as store,
        blocking.connect(way.address, **SHORT) as other,
    ):
        passes.clear()
        waiting = [
            threading.Thread(target=lambda: versions.append(store.append("a", [EVENT], es.ANY, timeout=seconds).version))  # noqa: B023
            for seconds in (math.inf, DEADLINE_SECONDS)
        ]
        for each in waiting:
            each.start()
        for _ in range(3):
            with pytest.raises(es.TimedOut):
                other.version("a")
        passes.set()
        for each in waiting:
            each.join()
        assert sorted(versions) == [1, 2]


@pytest.mark.parametrize("shards", [1, 2])
def test_of_many_items_it_is_the_time_until_the_next_outcomes_and_not_that_of_the_iterator(tmp_path: Path, shards: int) -> None:
    def commits() -> Iterator[es.Commit]:
        for number in range(2500):
            for held in limit.active:
                of_call = held()
                assert of_call is not None
                of_call.until = time.monotonic()  # as if the iterator had taken that long
            yield es.Commit(f"a-{number}", [EVENT], 0)

    with LedShards(tmp_path, shards) as led, blocking.connect(led.address, timeout=DEADLINE_SECONDS) as store:
        outcomes = store.append_many(commits())
        assert [type(each) for each in outcomes] == [es.Committed] * 2500


def test_a_command_whose_worker_misses_its_store_ends_and_may_have_been_stored(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server, WorkerThread(server.address, domain="tests.server.commands.tallies:app") as worker:
        with blocking.connect(worker.address, **SHORT) as store:
            store.send(Add("warm"), command_id="c-1", timeout=DEADLINE_SECONDS)
            server.stop()
            with pytest.raises(es.TimedOut, match="it may have been carried out, or may still be") as caught:
                store.send(Add("warm"), command_id="c-2")
            assert caught.value.outcome == "unknown"
            (outcome,) = store.send_many([(Add("warm"), "c-2")])
            assert isinstance(outcome, es.TimedOut)
            server.start()
            assert store.send(Add("warm"), command_id="c-2", timeout=DEADLINE_SECONDS).version == 2


@loops
def test_it_says_why_there_was_no_connection(run: Runner, server: ServerThread) -> None:
    async def use() -> None:
        async with es.connect(server.address, **SHORT) as store:

            async def says_why() -> bool:
                with pytest.raises(es.TimedOut) as caught:
                    await store.version("a")
                return "Connection refused; is the server running?" in caught.value.message

            server.stop()
            await eventually(says_why, "it is told")

    run(use)


def test_a_blocking_client_says_so_too() -> None:
    store = blocking.connect(closed_port(), **SHORT)
    with pytest.raises(es.TimedOut) as caught:
        store.append("a", [EVENT], 0)
    assert "within 0.1 s (tcp://127.0.0.1:" in caught.value.message
    assert "Connection refused; is the server running?); it changed nothing, and will not" in caught.value.message
    assert caught.value.cause.endswith("is the server running?")


def test_a_pull_has_its_wait_besides(server: ServerThread) -> None:
    with blocking.connect(server.address, timeout=0.5) as store:
        store.broker.create_topic("t", 1, timeout=DEADLINE_SECONDS)
        wait_until(lambda: store.broker.pull([("t", 0, 0, None)], wait=0.7).count == 0, "it has waited")
