"""A client is closed by any task of its event loop, and in any order: fixtures, notebooks and services open and close so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import eventstore as es
from tests.cluster.led_shards import LedShards
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.filterwarnings("error")
BACKENDS = ("trio", "asyncio")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerThread(tmp_path_factory.mktemp("served") / "data") as server:
        yield server.address


def run(backend: str, test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(DEADLINE_SECONDS):
            await test()

    anyio.run(main, backend=backend)


async def each_in_a_task(*steps: Callable[[], Awaitable[Any]]) -> None:
    """Runs these one after the other, each in a task of its own."""
    for step in steps:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_is_opened_used_and_closed_by_different_tasks(backend: str, address: str) -> None:
    async def test() -> None:
        store = es.connect(address)

        async def use() -> None:
            assert (await store.append(f"used-{backend}", [es.NewEvent("T", b"")], 0)).version == 1

        await each_in_a_task(store.__aenter__, use, lambda: store.__aexit__(None, None, None))
        with pytest.raises(es.Closed, match="was closed"):
            await store.version("a")
        await store.aclose()
        with pytest.raises(es.Closed, match="open another one"):
            await store.__aenter__()

    run(backend, test)


@pytest.mark.parametrize("backend", BACKENDS)
def test_clients_are_closed_in_the_order_in_which_they_were_opened(backend: str, address: str) -> None:
    async def test() -> None:
        first, second = es.connect(address), es.connect(address)
        await first.__aenter__()
        await second.__aenter__()
        await first.aclose()
        assert await second.version("nothing") == 0
        await second.aclose()

    run(backend, test)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_consumer_is_entered_used_and_left_by_different_tasks(backend: str, address: str) -> None:
    async def test() -> None:
        async with es.connect(address) as store:
            topic = f"topic-{backend}"
            await store.broker.create_topic(topic, if_missing=True)
            await store.topic(topic).send(b"hello")
            consumer, bodies = store.consumer("group", topic), list[bytes]()

            async def take() -> None:
                async for message in consumer:
                    bodies.append(message.body)
                    message.done()
                    break

            await each_in_a_task(consumer.__aenter__, take, lambda: consumer.__aexit__(None, None, None))
            assert bodies == [b"hello"]
            assert [each.members for each in await store.broker.groups() if each.name == "group"] == [0]
            await store.broker.delete_group("group")

    run(backend, test)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_that_nobody_closes_does_not_hold_up_the_end_of_its_event_loop(backend: str, address: str) -> None:
    async def test() -> None:
        store = es.connect(address)
        await store.__aenter__()
        assert await store.version("nothing") == 0

    run(backend, test)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_within_a_client_is_raised_as_it_is(backend: str, address: str) -> None:
    async def test() -> None:
        with pytest.raises(LookupError, match="mine"):
            async with es.connect(address):
                raise LookupError("mine")

    run(backend, test)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_server_that_is_not_there_is_an_error_and_leaves_nothing_behind(backend: str, tmp_path: Path) -> None:
    async def test() -> None:
        with ServerThread(tmp_path / "data") as server:
            address = server.address
        with pytest.raises(es.ConnectionLost):
            async with es.connect(address, connect_timeout=1):
                raise AssertionError("it is open")

    run(backend, test)


def test_a_client_of_another_event_loop_is_refused_in_words(address: str) -> None:
    store, opened_in = es.connect(address), asyncio.new_event_loop()
    try:
        opened_in.run_until_complete(store.__aenter__())

        async def elsewhere() -> None:
            with pytest.raises(es.Closed, match="give it and its tests the same loop_scope"):
                await store.version("a")
            with pytest.raises(es.Closed, match="another event loop"):
                await store.append("a", [es.NewEvent("T", b"")], es.ANY)
            with pytest.raises(es.Closed, match="another event loop"):
                await store.topic("orders").send(b"1", wait=False)
            with pytest.raises(es.Closed, match="another event loop"):
                await store.flush()
            with pytest.raises(es.Closed, match="another event loop"):
                await store.aclose()

        run("asyncio", elsewhere)
        run("trio", elsewhere)
        opened_in.run_until_complete(store.aclose())
    finally:
        opened_in.close()


@pytest.mark.parametrize("shards", [0, 2], ids=["one server", "shards"])
def test_streams_and_consumers_of_another_event_loop_are_refused_in_words(tmp_path: Path, shards: int) -> None:
    opened_in = asyncio.new_event_loop()

    async def opened(store: es.NetworkStore) -> tuple[Any, Any]:
        await store.__aenter__()
        await store.broker.create_topic("orders", 1)
        consumer, items = store.consumer("billing", "orders"), store.subscribe(after=es.END)
        await consumer.__aenter__()
        await store.topic("orders").send(b"1")
        await anext(consumer)
        assert isinstance(await anext(items), es.CaughtUp)
        return consumer, items

    async def elsewhere() -> None:
        for call in (
            lambda: anext(items),
            lambda: anext(consumer),
            consumer.some,
            lambda: consumer.run(print),
            lambda: consumer.__aexit__(None, None, None),
        ):
            with pytest.raises(es.Closed, match=r"another event loop .* the same loop_scope"):
                await call()

    with LedShards(tmp_path, shards) if shards else ServerThread(tmp_path / "data") as server:
        try:
            store = es.connect(server.address)
            consumer, items = opened_in.run_until_complete(opened(store))
            run("asyncio", elsewhere)
            run("trio", elsewhere)
            opened_in.run_until_complete(consumer.__aexit__(None, None, None))
            opened_in.run_until_complete(store.aclose())
        finally:
            opened_in.close()
