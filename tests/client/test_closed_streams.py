"""Streams that are closed have no more items, also for a thread, or task, that waits."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from tests.client.test_connecting import loops
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import Runner
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import eventually, wait_until

EVENTS = [NewEvent("Happened", b"1")] * 5


@pytest.fixture(scope="module", params=[0, 2], ids=["one server", "shards"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[blocking.BlockingStore]:
    folder = tmp_path_factory.mktemp("store")
    with LedShards(folder, request.param) if request.param else ServerProcess(folder / "data") as server:
        with blocking.connect(server.address) as store:
            store.append("a", EVENTS, 0)
            yield store


def test_a_read_ends_where_it_is_closed_in_the_midst_of_its_page(store: blocking.BlockingStore) -> None:
    for stream in (store.read("a"), store.read_all(), store.subscribe()):
        found = 0
        with stream:
            for _ in stream:
                found += 1
                if found == 2:
                    stream.close()
        assert found == 2
        with pytest.raises(StopIteration):
            next(stream)


def test_a_closed_stream_keeps_its_position(store: blocking.BlockingStore) -> None:
    for stream in (store.read_all(), store.subscribe()):
        next(stream)
        before = stream.position
        stream.close()
        assert stream.position == before
        assert len(list(store.read_all(after=before))) == 4


def test_a_subscription_ends_for_a_thread_that_waits(store: blocking.BlockingStore) -> None:
    waits, found = threading.Event(), list[object]()
    stream = store.subscribe(after=es.END)

    def follow() -> None:
        for item in stream:
            found.append(item)
            waits.set()

    thread = threading.Thread(target=follow)
    thread.start()
    waits.wait()
    stream.close()
    thread.join()
    assert [type(each) for each in found] == [es.CaughtUp]


def test_a_subscription_waits_no_longer_than_its_timeout_and_continues(store: blocking.BlockingStore) -> None:
    stream = store.subscribe(after=es.END, timeout=0.2)

    def taken() -> bool:
        try:
            found.append(next(stream))
        except es.TimedOut:
            return True
        return False

    found = list[object]()
    wait_until(lambda: taken() and len(found) == 1, "it has caught up, and nothing comes")
    store.append("later", EVENTS[:1], es.ANY)
    wait_until(lambda: not taken(), "it continues")
    assert [type(each) for each in found] == [es.CaughtUp, es.Event]
    stream.close()


@loops
def test_an_async_subscription_waits_no_longer_either(run: Runner, store: blocking.BlockingStore) -> None:
    async def use() -> None:
        async with es.connect(str(store._connection.addresses)) as own, own.subscribe(after=es.END, timeout=0.2) as stream:
            found = list[object]()

            async def taken() -> bool:
                try:
                    found.append(await anext(stream))
                except es.TimedOut:
                    return True
                return False

            async def all_taken() -> bool:
                return await taken() and len(found) == 1

            async def continues() -> bool:
                return not await taken()

            await eventually(all_taken, "it has caught up, and nothing comes")
            await own.append("later", EVENTS[:1], es.ANY)
            await eventually(continues, "it continues")
            assert [type(each) for each in found] == [es.CaughtUp, es.Event]

    run(use)


def test_a_subscription_of_one_shard_leaves_its_connection_to_the_others(tmp_path: Path) -> None:
    with LedShards(tmp_path, 2) as led, blocking.connect(led.address) as store:
        one = store.shards[0]
        with one.subscribe(after=es.END) as stream:
            assert isinstance(next(stream), es.CaughtUp)
        assert list(stream) == []
        assert one.aggregates() == []


@loops
@pytest.mark.parametrize("shards", [0, 2], ids=["one server", "shards"])
def test_an_async_read_ends_for_a_task_that_waits_for_its_server(run: Runner, shards: int, tmp_path: Path) -> None:
    async def use() -> None:
        async with es.connect(server.address) as store:
            await anyio.to_thread.run_sync(server.stop_servers)
            for stream in (store.read("a"), store.read_all()):
                await ended_by_close(stream)

    async def ended_by_close(stream: AsyncIterator[es.Event]) -> None:
        found = list[es.Event]()

        async def follow() -> None:
            found.extend([each async for each in stream])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()  # type: ignore[attr-defined] # all of ours have it
        assert found == []

    with LedShards(tmp_path, shards) if shards else ServerThread(tmp_path / "data") as server:
        run(use)
