"""Calls that have a timeout: each ends within it, whatever it waits for, and says what is known of what it was to change."""

from __future__ import annotations

import gc
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import trio

import eventstore as es
from eventstore import NewEvent, blocking
from eventstore.client import limit
from eventstore.client.aio import broker as aio_broker
from eventstore.client.aio import reactions as aio_reactions
from eventstore.client.aio.routing import shards_broker as aio_shards_broker
from eventstore.client.aio.routing import shards_reactions as aio_shards_reactions
from eventstore.client.blocking import broker, reactions
from eventstore.client.session.batches import ROWS_PER_TURN
from tests.client.test_connecting import loops
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import PATIENT, Runner
from tests.forwarder import Forwarder
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

EVENT = NewEvent("Happened", b"1")
SHORT = 0.1
NOT_CALLS = ("aclose", "close", "topic", "subscribe", "consumer", "ask_waits")
"""Those that wait for nothing, or for as long as there is nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as thread:
        yield thread


@pytest.fixture
def way(server: ServerThread) -> Iterator[Forwarder]:
    with Forwarder(server.address) as forwarder:
        yield forwarder


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 2) as shards:
        yield shards


@pytest.mark.parametrize(
    "kind",
    [
        es.NetworkStore, es.NetworkTopic, aio_broker.NetworkBroker, aio_shards_broker.ShardsBroker,
        aio_reactions.NetworkReactions, aio_reactions.NetworkAlarms, aio_shards_reactions.ShardsReactions,
        blocking.BlockingStore, blocking.BlockingTopic, broker.BlockingBroker,
        reactions.BlockingReactions, reactions.BlockingAlarms,
    ],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)  # fmt: skip
def test_every_call_of_both_clients_takes_a_timeout(kind: type[Any]) -> None:
    calls = {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    assert calls
    without = [name for name, each in calls.items() if "timeout" not in inspect.signature(each).parameters]
    assert set(without) <= set(NOT_CALLS)


@loops
def test_an_append_that_was_sent_and_not_answered_in_time_may_be_stored(run: Runner, way: Forwarder) -> None:
    async def use() -> None:
        async with es.connect(way.address, **PATIENT) as store:
            await store.append("a-1", [EVENT], 0)
            way.freeze()
            with pytest.raises(es.TimedOut, match=r"not answered within 0.1 s: it may have been carried out") as caught:
                await store.append("a-1", [EVENT], 1, timeout=SHORT)
            assert caught.value.fields == {"timeout_ms": 100, "outcome": "unknown"}
            (outcome,) = await store.append_many([es.Commit("a-1", [EVENT], 1)], timeout=SHORT)
            assert isinstance(outcome, es.TimedOut)
            assert outcome.outcome == "unknown"
            with pytest.raises(es.TimedOut) as caught:
                await store.version("a-1", timeout=SHORT)
            assert caught.value.outcome == "none", "it changes nothing"
            with pytest.raises(es.TimedOut) as caught:
                await store.broker.create_topic("t", timeout=SHORT)
            assert caught.value.outcome == "unknown"
            with pytest.raises(es.TimedOut):
                [_ async for _ in store.read("a-1", timeout=SHORT)]
            with pytest.raises(es.TimedOut):
                [_ async for _ in store.read_all(timeout=SHORT)]
            assert not limit.active

    run(use)


def test_an_append_of_a_blocking_client_may_be_stored_then(way: Forwarder) -> None:
    with blocking.connect(way.address, **PATIENT) as store:
        store.append("a-1", [EVENT], 0)
        way.freeze()
        with pytest.raises(es.TimedOut, match=r"not answered within 0.1 s: it may have been carried out") as caught:
            store.append("a-1", [EVENT], 1, timeout=SHORT)
        assert caught.value.fields == {"timeout_ms": 100, "outcome": "unknown"}
        (outcome,) = store.append_many([es.Commit("a-1", [EVENT], 1)], timeout=SHORT)
        assert isinstance(outcome, es.TimedOut)
        assert outcome.outcome == "unknown"
        with pytest.raises(es.TimedOut) as caught:
            store.version("a-1", timeout=SHORT)
        assert caught.value.outcome == "none", "it changes nothing"
        with pytest.raises(es.TimedOut) as caught:
            store.broker.create_topic("t", timeout=SHORT)
        assert caught.value.outcome == "unknown"
        with pytest.raises(es.TimedOut):
            list(store.read("a-1", timeout=SHORT))
        with pytest.raises(es.TimedOut):
            list(store.read_all(timeout=SHORT))
        assert not limit.active


@loops
def test_what_was_not_sent_in_time_is_never_stored(run: Runner, server: ServerThread) -> None:
    async def use() -> None:
        async with es.connect(server.address, **PATIENT) as store:
            server.stop()
            with pytest.raises(es.TimedOut):  # notices that the connection is lost
                await store.version("a-1", timeout=SHORT)

            async def is_told_why() -> bool:  # it is not while a connection is tried
                with pytest.raises(
                    es.TimedOut, match=r"not answered within 0.1 s.*; it changed nothing, and will not"
                ) as caught:
                    await store.append("a-1", [EVENT], 0, timeout=SHORT)
                assert caught.value.outcome == "none"
                return "0.1 s (" in caught.value.message

            await eventually(is_told_why, "the error names the cause")
            outcomes = await store.append_many([es.Commit("a-2", [EVENT], 0)] * 3, timeout=SHORT)
            assert [getattr(each, "outcome", None) for each in outcomes] == ["none"] * 3
            with pytest.raises(es.TimedOut):
                await store.broker.create_topic("t", timeout=SHORT)
            server.start()
            assert (await store.append("a-3", [EVENT], 0)).sequence == 1
            assert await store.version("a-1") == await store.version("a-2") == 0
            assert await store.broker.topics() == []

    run(use)


def test_nor_is_it_of_a_blocking_client(server: ServerThread) -> None:
    with blocking.connect(server.address, **PATIENT) as store:
        server.stop()
        with pytest.raises(es.TimedOut):  # notices that the connection is lost
            store.version("a-1", timeout=SHORT)

        def is_told_why() -> bool:  # it is not while a connection is tried
            with pytest.raises(es.TimedOut, match=r"not answered within 0.1 s.*; it changed nothing, and will not") as caught:
                store.append("a-1", [EVENT], 0, timeout=SHORT)
            assert caught.value.outcome == "none"
            return "0.1 s (" in caught.value.message

        wait_until(is_told_why, "the error names the cause")
        outcomes = store.append_many([es.Commit("a-2", [EVENT], 0)] * 3, timeout=SHORT)
        assert [getattr(each, "outcome", None) for each in outcomes] == ["none"] * 3
        with pytest.raises(es.TimedOut):
            store.broker.create_topic("t", timeout=SHORT)
        server.start()
        assert store.append("a-3", [EVENT], 0).sequence == 1
        assert store.version("a-1") == store.version("a-2") == 0
        assert store.broker.topics() == []


reads = pytest.mark.parametrize(
    "read",
    [lambda store, **timeout: store.read("a-1", **timeout), lambda store, **timeout: store.read_all(**timeout)],
    ids=["read", "read_all"],
)


def taken(iterator: Iterator[es.Event], found: list[es.Event]) -> bool:
    """Takes what an iterator has within the time of its calls. Returns whether that was all."""
    with suppress(es.TimedOut):
        for each in iterator:
            found.append(each)
        return True
    return False


@reads
def test_a_blocking_read_without_time_takes_what_has_arrived(
    server: ServerThread, read: Callable[..., Iterator[es.Event]]
) -> None:
    passes, found = threading.Event(), list[es.Event]()
    passes.set()
    with (
        Forwarder(server.address, lambda data: data if passes.wait(DEADLINE_SECONDS) else b"") as way,
        blocking.connect(way.address, **PATIENT) as store,
    ):
        store.append("a-1", [EVENT], 0)
        iterator = iter(read(store, timeout=0))
        passes.clear()
        assert not taken(iterator, found)
        assert not found
        passes.set()
        wait_until(lambda: taken(iterator, found), "the page has arrived")
        assert [each.aggregate_id for each in found] == ["a-1"]


def test_a_blocking_read_of_several_shards_goes_on_after_one_was_late(led: LedShards) -> None:
    ids, found = [led.id_of(0), led.id_of(1)], list[es.Event]()
    with blocking.connect(led.address, **PATIENT) as store:
        store.append_many([es.Commit(each, [EVENT], 0) for each in ids])
        led.leaders[1].freeze()  # type: ignore[union-attr]
        iterator = iter(store.read_all(timeout=SHORT))
        assert not taken(iterator, found)
        led.elect(1, led.lead(1))
        wait_until(lambda: taken(iterator, found), "the other shard is read")
        assert sorted(each.aggregate_id for each in found) == sorted(ids)


@reads
def test_a_blocking_read_goes_on_after_its_page_was_late(server: ServerThread, read: Callable[..., Iterator[es.Event]]) -> None:
    passes = threading.Event()
    passes.set()
    with (
        Forwarder(server.address, lambda data: data if passes.wait(DEADLINE_SECONDS) else b"") as way,
        blocking.connect(way.address, **PATIENT) as store,
    ):
        store.append("a-1", [EVENT], 0)
        iterator = iter(read(store))
        passes.clear()
        with pytest.raises(es.TimedOut), limit.within(SHORT):
            next(iterator)
        passes.set()
        assert [each.aggregate_id for each in iterator] == ["a-1"]


def test_a_blocking_read_that_is_dropped_after_its_page_was_late_wants_it_no_longer(
    server: ServerThread, way: Forwarder
) -> None:
    """At once: the garbage collector may not run for long."""
    with blocking.connect(way.address, **PATIENT) as store:
        iterator = iter(store.read("a-1"))
        way.freeze()
        gc.disable()
        try:
            with pytest.raises(es.TimedOut), limit.within(SHORT):
                next(iterator)
            session = store._connection._session
            (call,) = session._sent.values()
            assert call.wanted
            del iterator
            assert not call.wanted
        finally:
            gc.enable()


class Endless:
    """Items for ever. `taken`: how many."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.taken = 0
        self._make = make

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self.taken += 1
        return self._make(self.taken)


def commit_of(number: int) -> es.Commit:
    return es.Commit(f"a-{number}", [EVENT], 0)


def check_outcomes(given: Endless, outcomes: Sequence[object]) -> None:
    assert len(outcomes) == given.taken, "what is left in an iterator can be appended later"
    assert isinstance(outcomes[-1], es.TimedOut)


@pytest.mark.parametrize("shards", [1, 2])
@loops
def test_of_an_iterator_no_more_is_taken_than_there_is_time_for(run: Runner, tmp_path: Path, shards: int) -> None:
    """Each call would take for ever."""

    async def use() -> None:
        async with es.connect(led.address, **PATIENT) as store:
            await store.broker.create_topic("t", 1)
            check_outcomes(commits, await store.append_many(commits, timeout=SHORT))
            check_outcomes(messages, await store.topic("t").send_many(messages, timeout=SHORT))

    commits, messages = Endless(commit_of), Endless(lambda number: b"message")
    with LedShards(tmp_path, shards) as led:
        run(use)


@pytest.mark.parametrize("shards", [1, 2])
def test_nor_does_a_blocking_client_take_more(tmp_path: Path, shards: int) -> None:
    commits, messages = Endless(commit_of), Endless(lambda number: b"message")
    with LedShards(tmp_path, shards) as led, blocking.connect(led.address, **PATIENT) as store:
        store.broker.create_topic("t", 1)
        check_outcomes(commits, store.append_many(commits, timeout=SHORT))
        check_outcomes(messages, store.topic("t").send_many(messages, timeout=SHORT))


def beyond_its_time(other: blocking.BlockingStore) -> Callable[[int], es.Commit]:
    """Makes commits, with calls of its own. In one of these the call that takes them has no time left, and this goes on."""
    other.broker.create_topic("t", 1)

    def make(number: int) -> es.Commit:
        if number == ROWS_PER_TURN + 2:
            (of_call,) = (each() for each in limit.active)
            assert of_call is not None
            wait_until(lambda: all(other.version(f"a-{each}") for each in range(1, ROWS_PER_TURN + 1)), "those are stored")
            of_call.until = time.monotonic()
            assert other.broker.pull([("t", 0, 0, None)], wait=SHORT).count == 0, "which takes as long"
        return commit_of(number)

    return make


def test_what_a_slow_iterator_gave_and_the_server_stored_has_its_outcome(server: ServerThread) -> None:
    with blocking.connect(server.address, **PATIENT) as store, blocking.connect(server.address) as other:
        commits = Endless(beyond_its_time(other))
        outcomes = store.append_many(commits, timeout=DEADLINE_SECONDS)
        check_outcomes(commits, outcomes)
        assert [type(each) for each in outcomes[:ROWS_PER_TURN]] == [es.Committed] * ROWS_PER_TURN
        assert [getattr(each, "outcome", None) for each in outcomes[ROWS_PER_TURN:]] == ["none"] * 2
        assert store.append("a-0", [EVENT], 0).version == 1


@loops
def test_so_has_it_with_an_async_client(run: Runner, server: ServerThread) -> None:
    async def use() -> None:
        async with es.connect(server.address, **PATIENT) as store:
            assert await store.version("a-1") == 0
            commits = Endless(beyond_its_time(other))
            outcomes = await store.append_many(commits, timeout=DEADLINE_SECONDS)
            check_outcomes(commits, outcomes)
            known = [getattr(each, "outcome", None) for each in outcomes]
            assert "none" not in known[:ROWS_PER_TURN], "they are stored; their answers may not have been read"
            assert known[ROWS_PER_TURN:] == ["none"] * 2

    with blocking.connect(server.address) as other:
        run(use)


@pytest.mark.parametrize("timeout", [None, DEADLINE_SECONDS])
@pytest.mark.parametrize("of", ["server", "led"])
def test_a_timeout_that_an_iterator_raises_goes_to_the_caller(
    request: pytest.FixtureRequest, of: str, timeout: float | None
) -> None:
    """As its other exceptions: the call that takes from it has time left."""

    def commits() -> Iterator[es.Commit]:
        yield commit_of(1)
        raise over

    async def use() -> None:
        async with es.connect(address, **PATIENT) as store:
            with pytest.raises(es.TimedOut) as caught:
                await store.append_many(commits(), timeout=timeout)
            assert caught.value is over

    address, over = request.getfixturevalue(of).address, limit.Limit(0).over()
    trio.run(use)
    with blocking.connect(address, **PATIENT) as store, pytest.raises(es.TimedOut) as caught:
        store.append_many(commits(), timeout=timeout)
    assert caught.value is over


@loops
def test_a_shard_that_is_silent_takes_the_time_of_its_own_rows_alone(run: Runner, led: LedShards) -> None:
    mine, other = led.id_of(0), led.id_of(1)

    async def use() -> None:
        async with es.connect(led.address, **PATIENT) as store:
            await store.append_many([es.Commit(mine, [EVENT], 0), es.Commit(other, [EVENT], 0)])
            led.leaders[1].freeze()  # type: ignore[union-attr]
            first, second = await store.append_many([es.Commit(mine, [EVENT], 1), es.Commit(other, [EVENT], 1)], timeout=SHORT)
            assert isinstance(first, es.Committed)
            assert isinstance(second, es.TimedOut)
            assert second.outcome == "unknown"
            with pytest.raises(es.TimedOut):
                await store.append(other, [EVENT], 1, timeout=SHORT)
            led.elect(1, None)
            with pytest.raises(es.TimedOut):
                await store.append(other, [EVENT], 1, timeout=SHORT)
            assert (await store.append(mine, [EVENT], 2, timeout=DEADLINE_SECONDS)).version == 3

    run(use)


def test_so_it_is_with_a_blocking_client(led: LedShards) -> None:
    mine, other = led.id_of(0), led.id_of(1)
    with blocking.connect(led.address, **PATIENT) as store:
        store.append_many([es.Commit(mine, [EVENT], 0), es.Commit(other, [EVENT], 0)])
        led.leaders[1].freeze()  # type: ignore[union-attr]
        first, second = store.append_many([es.Commit(mine, [EVENT], 1), es.Commit(other, [EVENT], 1)], timeout=SHORT)
        assert isinstance(first, es.Committed)
        assert isinstance(second, es.TimedOut)
        assert second.outcome == "unknown"
        with pytest.raises(es.TimedOut):
            store.append(other, [EVENT], 1, timeout=SHORT)
        led.elect(1, None)
        with pytest.raises(es.TimedOut):
            store.append(other, [EVENT], 1, timeout=SHORT)
        assert store.append(mine, [EVENT], 2, timeout=DEADLINE_SECONDS).version == 3


@loops
def test_a_change_of_all_shards_that_one_of_them_has_made_may_be_made(run: Runner, led: LedShards) -> None:
    async def use() -> None:
        async with es.connect(led.address, **PATIENT) as store:
            led.elect(1, None)
            with pytest.raises(es.TimedOut) as caught:
                await store.broker.create_topic("orders", timeout=1.0)
            assert caught.value.outcome == "unknown"
            assert [each.name for each in await store.shards[0].broker.topics()] == ["orders"]

    run(use)


@loops
def test_a_call_that_timed_out_leaves_its_connection_to_the_others(run: Runner, server: ServerThread) -> None:
    async def use() -> None:
        async with es.connect(server.address) as store:
            await store.broker.create_topic("t", 1)
            with pytest.raises(es.TimedOut) as caught:
                await store.broker.pull([("t", 0, 0, None)], wait=60, timeout=SHORT)
            assert caught.value.outcome == "none"
            assert await store.version("a") == 0
            assert store._connection.session.connections == 1

    run(use)
    with blocking.connect(server.address) as store:
        with pytest.raises(es.TimedOut) as caught:
            store.broker.pull([("t", 0, 0, None)], wait=60, timeout=SHORT)
        assert caught.value.outcome == "none"
        assert store.version("a") == 0
        assert store._connection.session.connections == 1


@loops
def test_a_server_that_hangs_is_left_while_calls_with_a_timeout_come_and_go(run: Runner, server: ServerThread) -> None:
    """As each call may: the one is due soon, the other waits for as long as there is nothing."""

    async def use() -> None:
        async with es.connect(f"{first.address},{second.leader}", **PATIENT) as store:

            async def answers() -> bool:
                with suppress(es.TimedOut):
                    await store.broker.pull([("t", 0, 0, None)], wait=60, timeout=0.8)
                with suppress(es.TimedOut):
                    return await store.version("a-1", timeout=0.6) == 1
                return False

            await store.broker.create_topic("t", 1)
            await store.append("a-1", [EVENT], 0)
            used = store._connection.address
            (first if str(used) == first.address else second).freeze()
            await eventually(answers, "the other address is asked")
            assert store._connection.address != used

    with Forwarder(server.address) as first, Forwarder(server.address) as second:
        run(use)


@loops
def test_an_async_client_whose_only_connection_is_dead_connects_to_the_same_address_again(run: Runner, way: Forwarder) -> None:
    """The machine is there, and what lies between has forgotten the connection."""

    async def use() -> None:
        async with es.connect(way.address, **PATIENT | {"silence_timeout": 1.0}) as store:
            await store.append("a-1", [EVENT], 0)
            items = store.subscribe(after=es.END)
            assert isinstance(await anext(items), es.CaughtUp)
            way.forget()
            assert await store.version("a-1", timeout=DEADLINE_SECONDS) == 1
            assert way.accepted == 2
            await store.append("a-1", [EVENT], 1)
            assert (await anext(items)).aggregate_id == "a-1"

    run(use)


@pytest.mark.parametrize("timeout", [SHORT, 0.3], ids=["shorter than a look", "longer"])
def test_a_server_that_hangs_is_left_by_a_blocking_client_although_no_call_waits_for_long(
    way: Forwarder, timeout: float
) -> None:
    def is_left() -> bool:
        with pytest.raises(es.TimedOut):
            store.version("a-1", timeout=timeout)
        return way.accepted > 1

    with blocking.connect(way.address, **PATIENT | {"silence_timeout": 1.0}) as store:
        assert store.version("a-1") == 0
        way.freeze()
        wait_until(is_left, "the client connects again")
        with pytest.raises(es.TimedOut):
            store.version("a-1", timeout=2.0)


def test_a_thread_whose_time_is_over_does_not_wait_for_another_one_that_has_the_connection(way: Forwarder) -> None:
    with blocking.connect(way.address, **PATIENT) as store:
        way.freeze()
        failed = []

        def ask() -> None:
            try:
                store.version("a-1")
            except es.Closed as closed:
                failed.append(closed)

        waits = threading.Thread(target=ask)
        waits.start()
        assert way.held.wait(DEADLINE_SECONDS)
        with pytest.raises(es.TimedOut):
            store.version("a-2", timeout=SHORT)
        with pytest.raises(es.TimedOut):
            store.append("a-2", [EVENT], 0, timeout=SHORT)
        store.close()
        waits.join(DEADLINE_SECONDS)
        assert failed


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_is_none_is_refused(server: ServerThread, timeout: float) -> None:
    with (
        blocking.connect(server.address) as store,
        pytest.raises(es.InvalidArgument, match=r"timeout is .* seconds, the least is 0"),
    ):
        store.append("a-1", [EVENT], 0, timeout=timeout)


def test_a_timeout_that_is_no_number_is_refused(server: ServerThread) -> None:
    with (
        blocking.connect(server.address) as store,
        pytest.raises(es.InvalidArgument, match=r"timeout must be a number, not '2\.5'"),
    ):
        store.append("a-1", [EVENT], 0, timeout="2.5")  # type: ignore[arg-type] # as it comes from the environment
