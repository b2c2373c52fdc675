"""Closing an embedded store, errors in its block, and opening it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.store.embedded import EmbeddedStore
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import SMALL_FILES, Opener, everything, left_after, slow
from tests.store.stepped import Stepped, order_of_files


async def test_closing_waits_for_calls_in_flight(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    done: list[es.Committed] = []

    async def append(store: EmbeddedStore) -> None:
        done.append(await store.append("order", [es.NewEvent("T")], 1))

    async with trio.open_nursery() as nursery:
        async with opening() as store:
            await store.append("order", [es.NewEvent("T")], 0)
            with slow(disk):
                nursery.start_soon(append, store)
                await trio.testing.wait_all_tasks_blocked()
                assert done == []
    assert [committed.version for committed in done] == [2]
    assert len(left_after(disk, tmp_path)) == 2


async def test_closing_waits_for_the_thread_of_a_read_that_was_cancelled(opening: Opener, disk: SimulatedDisk) -> None:
    order: list[str] = []
    closing, scope = trio.Event(), trio.CancelScope()

    async def keep_open(*, task_status: trio.TaskStatus[EmbeddedStore]) -> None:
        async with opening() as store:
            await store.append("order", [es.NewEvent("T")], 0)
            task_status.started(store)
            await closing.wait()
        order.append("closed")

    async def read(store: EmbeddedStore) -> None:
        with scope:
            try:
                async for _ in store.read_all():  # a short `read` may run on the event loop
                    pass
            finally:
                order.append("read")

    async with trio.open_nursery() as nursery:
        store = await nursery.start(keep_open)
        with slow(disk):
            nursery.start_soon(read, store)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            closing.set()
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
    assert order == ["read", "closed"]


async def test_a_closed_store_raises_closed_and_its_subscriptions_end(opening: Opener) -> None:
    ended: list[str] = []

    async def follow(store: EmbeddedStore) -> None:
        try:
            async for _ in store.subscribe():
                pass
        except es.Closed:
            ended.append("closed")

    async with trio.open_nursery() as nursery:
        async with opening() as store:
            await store.append("order", [es.NewEvent("T")], 0)
            nursery.start_soon(follow, store)
            await trio.testing.wait_all_tasks_blocked()
    assert ended == ["closed"]
    with pytest.raises(es.Closed):
        await store.append("order", [es.NewEvent("T")], 1)
    with pytest.raises(es.Closed):
        await store.append_many([])
    with pytest.raises(es.Closed):
        await store.version("order")
    with pytest.raises(es.Closed):
        await store.find_command("order", "c")
    for stream in (store.read("order"), store.read_all(), store.subscribe()):
        with pytest.raises(es.Closed):
            async for _ in stream:
                pass


async def test_an_error_in_the_block_leaves_it_unwrapped(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async def fail() -> None:
        async with opening() as store:
            await store.append("order", [es.NewEvent("T")], 0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert len(left_after(disk, tmp_path)) == 1


async def test_a_restart_finds_the_files_unchanged(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async with opening(SMALL_FILES) as store:
        for number in range(60):
            await store.append("order", [es.NewEvent("T", bytes(100))], number)
        before = await everything(store)
    stepped = Stepped(disk, tmp_path / "lmdb")
    assert order_of_files(stepped)[-1] == "ongoing"
    assert stepped.state() == before
    stepped.close()


def test_opening_on_asyncio_is_refused_with_advice(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(es.InvalidArgument, match=r"^an embedded store needs trio; use trio\.run\(main\), or"):
            async with es.open_store(tmp_path / "data"):
                pass

    asyncio.run(main())
    assert not (tmp_path / "data").exists()
