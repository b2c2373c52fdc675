"""A shard whose leader changes: clients leave the old process at once, and what it has not answered goes to the new one.

No timeout ends a wait in these tests: they hang if the map alone does not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from eventstore.client import backoff
from eventstore.event_identity import LogPosition
from tests.client.test_connecting import loops
from tests.cluster.led_shards import LedShards
from tests.forwarder import Forwarder
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

EVENT = NewEvent("Happened", b"1")
PATIENT: dict[str, Any] = dict.fromkeys(("timeout", "reconnect_timeout", "silence_timeout", "connect_timeout"), 10_000)
Runner = Callable[..., None]
UNSERVED = "no process serves shard 1 now; `eventstore cluster status` says why$"


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 2) as shards:
        yield shards


class Waiting:
    """An append of the blocking client, on a thread."""

    def __init__(self, store: blocking.BlockingStore, aggregate_id: str) -> None:
        self.done: es.Committed | None = None
        self._thread = threading.Thread(target=self._append, args=(store, aggregate_id), daemon=True)
        self._thread.start()

    def _append(self, store: blocking.BlockingStore, aggregate_id: str) -> None:
        self.done = store.append(aggregate_id, [EVENT], 1, "second")

    def result(self) -> es.Committed:
        self._thread.join(DEADLINE_SECONDS)
        assert self.done is not None
        return self.done


def replace_a_frozen_leader(led: LedShards) -> Forwarder:
    """Waits for a request that the frozen leader of shard 1 holds, and has another one elected."""
    leader = led.leaders[1]
    assert leader is not None
    assert leader.held.wait(DEADLINE_SECONDS)
    new = led.lead(1)
    led.elect(1, new)
    return new


@loops
def test_an_open_connection_to_a_process_that_leads_no_more_is_left_and_its_requests_go_to_the_new_one(
    run: Runner, led: LedShards
) -> None:
    mine = led.id_of(1)

    async def use() -> None:
        async with es.connect(led.address, **PATIENT) as store, anyio.create_task_group() as tasks:
            await store.append(mine, [EVENT], 0, "first")
            led.leaders[1].freeze()  # type: ignore[union-attr]
            tasks.start_soon(anyio.to_thread.run_sync, replace_a_frozen_leader, led)
            assert (await store.append(mine, [EVENT], 1, "second")).version == 2
            assert (await store.append(led.id_of(0), [EVENT], 0)).version == 1

    run(use)


def test_a_blocking_client_leaves_it_too(led: LedShards) -> None:
    mine = led.id_of(1)
    with blocking.connect(led.address, **PATIENT) as store:
        store.append(mine, [EVENT], 0, "first")
        led.leaders[1].freeze()  # type: ignore[union-attr]
        waiting = Waiting(store, mine)
        replace_a_frozen_leader(led)
        assert waiting.result().version == 2


@loops
def test_a_call_waits_while_nobody_leads_and_begins_at_once_when_somebody_does(
    run: Runner, led: LedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait between two attempts would last for hours."""
    monkeypatch.setattr(backoff, "FIRST_DELAY_S", 10_000.0)
    monkeypatch.setattr(backoff, "DELAY_S_MAX", 10_000.0)
    mine, new = led.id_of(1), led.lead(1)

    async def use() -> None:
        async with es.connect(led.address, **PATIENT) as store:
            await store.append(mine, [EVENT], 0, "first")
            led.elect(1, None)
            shard = store._router._shards[1]  # type: ignore[union-attr]

            async def is_away() -> bool:
                return shard.welcome is None and bool(shard._attempts)

            await eventually(is_away, "the old leader is left, and nobody is found")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, led.elect, 1, new)
                assert (await store.append(mine, [EVENT], 1, "second")).version == 2

    run(use)


def test_a_blocking_call_waits_too_and_begins_at_once(led: LedShards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY_S", 10_000.0)
    monkeypatch.setattr(backoff, "DELAY_S_MAX", 10_000.0)
    mine, new = led.id_of(1), led.lead(1)
    with blocking.connect(led.address, **PATIENT) as store:
        store.append(mine, [EVENT], 0, "first")
        led.elect(1, None)
        assert store._router is not None
        router = store._router.opened()
        wait_until(lambda: router.table.address_of(1) is None, "the map is known")
        waiting = Waiting(store, mine)
        wait_until(lambda: router._shards[1]._attempts, "nobody is found")
        led.elect(1, new)
        assert waiting.result().version == 2


@loops
def test_nobody_that_leads_for_too_long_is_a_lost_connection_which_says_so(run: Runner, led: LedShards) -> None:
    led.elect(1, None)

    async def use() -> None:
        async with es.connect(led.address, reconnect_timeout=0.1) as store:
            with pytest.raises(es.ConnectionLost, match=UNSERVED):
                await store.append(led.id_of(1), [EVENT], 0)
            assert (await store.append(led.id_of(0), [EVENT], es.ANY)).version > 0

    run(use)
    with blocking.connect(led.address, reconnect_timeout=0.1) as store:
        with pytest.raises(es.ConnectionLost, match=UNSERVED):
            store.append(led.id_of(1), [EVENT], 0)


@loops
def test_an_attempt_to_reach_a_process_that_hangs_ends_when_another_one_leads(run: Runner, led: LedShards) -> None:
    leader = led.leaders[1]
    assert leader is not None
    leader.freeze()

    async def use() -> None:
        async with es.connect(led.address, **PATIENT) as store, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, replace_a_frozen_leader, led)
            assert (await store.append(led.id_of(1), [EVENT], 0)).version == 1

    run(use)


def test_a_blocking_attempt_ends_too(led: LedShards) -> None:
    leader = led.leaders[1]
    assert leader is not None
    leader.freeze()
    thread = threading.Thread(target=replace_a_frozen_leader, args=(led,))
    with blocking.connect(led.address, **PATIENT) as store:
        thread.start()
        assert store.append(led.id_of(1), [EVENT], 0).version == 1
    thread.join()


def test_a_blocking_subscription_follows_the_leader(led: LedShards) -> None:
    with blocking.connect(led.address, **PATIENT) as store:
        store.append(led.id_of(1), [EVENT], 0)
        with store.subscribe() as items:
            assert isinstance(next(items), es.Event)
            assert isinstance(next(items), es.CaughtUp)
            led.leaders[1].freeze()  # type: ignore[union-attr]
            led.elect(1, led.lead(1))
            store.append(led.id_of(1), [EVENT], 1)
            found = next(items)
            assert isinstance(found, es.Event)
            assert found.version == 2


def test_another_shard_at_the_old_address_of_one_is_not_taken_for_it(led: LedShards) -> None:
    """A stale map leads to it; the client waits for a newer one."""
    old = led.leaders[1]
    assert old is not None
    with blocking.connect(led.address, **PATIENT) as store:
        led.elect(1, None)
        led.elect(0, None)
        led.elect(1, led.lead(0))  # wrong on purpose
        assert store._router is not None
        router = store._router.opened()
        wait_until(lambda: router.table.known.version == 4, "the map is known")
        waiting = threading.Thread(target=lambda: store.append(led.id_of(1), [EVENT], 0))
        waiting.start()
        wait_until(lambda: router._shards and router._shards[1]._attempts, "the shard is refused")
        assert "another store answers where shard 1 was" in str(router._shards[1]._attempts[0][1])
        led.elect(1, old)
        waiting.join(DEADLINE_SECONDS)
        assert not waiting.is_alive()
        assert store.version(led.id_of(1)) == 1


@loops
def test_a_consumer_logs_a_shard_that_goes_away_after_the_join_and_when_it_is_back(
    run: Runner, led: LedShards, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "eventstore.client.routing.merging")

    def logged(text: str) -> Callable[[], Awaitable[bool]]:
        async def found() -> bool:
            return text in caplog.text

        return found

    async def use() -> None:
        async with es.connect(led.address, reconnect_timeout=0.1) as store:
            await store.broker.create_topic("orders", 1, if_missing=True)
            async with store.consumer(f"billing-{run.__name__}", "orders", commit_interval=0.05):
                old = led.leaders[1]
                led.elect(1, None)
                await eventually(logged("the messages of shard 1 wait until it can be reached: tcp://"), "it is away")
                led.elect(1, old)
                await eventually(logged("shard 1 is reached again; its messages continue"), "it is back")

    run(use)
    assert caplog.text.count("wait until it can be reached") == 1


def test_a_lost_shard_makes_errors_in_the_places_of_its_rows_alone(led: LedShards) -> None:
    """The same for commits and for messages; what it had answered before stands."""
    led.elect(1, None)
    ids = [led.id_of(number % 2, number) for number in range(10)]
    with blocking.connect(led.address, reconnect_timeout=0.1) as store:
        outcomes = store.append_many([es.Commit(each, [EVENT], es.ANY) for each in ids])
        assert [type(each) for each in outcomes] == [es.Committed, es.ConnectionLost] * 5
        store.shards[0].broker.create_topic("orders", 1)
        sent = store.topic("orders").send_many([es.NewMessage(b"m", key=each) for each in ids])
        assert [type(each) for each in sent] == [es.SendResult, es.ConnectionLost] * 5


@loops
def test_events_of_one_aggregate_are_asked_of_its_shard_alone(run: Runner, led: LedShards) -> None:
    mine = led.id_of(1)
    with blocking.connect(led.address) as store:
        store.append(mine, [EVENT], es.ANY)
        store.append(led.id_of(0), [EVENT], es.ANY)
        assert [each.aggregate_id for each in store.read_all(aggregate_id=mine)] == [mine]
        with store.subscribe(aggregate_id=mine) as items:
            found = next(items)
            assert isinstance(found, es.Event)
            assert isinstance(next(items), es.CaughtUp)
            assert items.position.shards == {0: (0, ""), 1: LogPosition.at(found)}

    async def use() -> None:
        async with es.connect(led.address) as store:
            assert [each.aggregate_id async for each in store.read_all(aggregate_id=mine)] == [mine]
            async with store.subscribe(after=es.END, aggregate_id=mine) as items:
                assert isinstance(await anext(items), es.CaughtUp)
                await store.append(mine, [EVENT], es.ANY)
                assert isinstance(await anext(items), es.Event)
                assert items.position

    run(use)
