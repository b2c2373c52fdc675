"""Reads and subscriptions of the embedded store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.model import CaughtUp, Event
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ROOMY, SMALL_FILES, Opener, everything, slow


async def test_reads_page_through_files_in_both_directions_with_limits(opening: Opener) -> None:
    async with opening(SMALL_FILES) as store:
        for number in range(60):
            await store.append(f"order-{number % 2}", [es.NewEvent("A" if number % 3 else "B", bytes(200))] * 2, es.ANY)
        events = await everything(store)
        assert [event.sequence for event in events] == list(range(1, 121))
        own = [event for event in events if event.aggregate_id == "order-1"]
        assert [event async for event in store.read("order-1")] == own
        assert [event async for event in store.read("order-1", backwards=True)] == own[::-1]
        assert [event async for event in store.read("order-1", 7, 12)] == own[6:12]
        assert [event async for event in store.read("order-1", 7, 12, backwards=True, limit=3)] == own[6:12][::-1][:3]
        assert [event async for event in store.read("order-1", limit=0)] == []
        assert [event async for event in store.read("order-1", 999)] == []
        assert [event async for event in store.read("nobody")] == []
        assert [event async for event in store.read_all(50, limit=9)] == events[50:59]
        assert [event async for event in store.read_all(types=["B"], limit=7)] == [e for e in events if e.type == "B"][:7]
        assert [event async for event in store.read_all(aggregate_prefix="order-1")] == own
        assert [event async for event in store.read_all(1_000)] == []


async def test_invalid_arguments_are_refused_and_the_store_keeps_working(opening: Opener) -> None:
    async with opening() as store:
        calls: list[Callable[[], object]] = [
            lambda: store.append("", [es.NewEvent("T")], 0),
            lambda: store.append("a", [], 0),
            lambda: store.append("a", [es.NewEvent("T")], -1),
            lambda: store.append("a", [es.NewEvent("T")], 0, timestamp=1.5),  # type: ignore[arg-type]
            lambda: store.append("a", [es.NewEvent("")], 0),
            lambda: store.append("a", [("T", b"")], 0),  # type: ignore[list-item]
            lambda: store.version("x" * 256),
            lambda: store.find_command("a", ""),
        ]
        for call in calls:
            with pytest.raises(es.InvalidArgument):
                await call()  # type: ignore[misc] # all of them are coroutines
        for read in (
            lambda: store.read("a", 0),
            lambda: store.read("a", limit=-1),
            lambda: store.read_all(-1),
            lambda: store.read_all(types="Placed"),
            lambda: store.subscribe(-1),
        ):
            with pytest.raises(es.InvalidArgument):
                read()
        assert (await store.append("a", [es.NewEvent("T")], 0)).version == 1


async def test_a_subscription_catches_up_yields_caught_up_and_continues_live(opening: Opener) -> None:
    async with opening(SMALL_FILES) as store:
        for number in range(30):
            await store.append("order", [es.NewEvent("T", bytes(100))], number)
        got: list[Event | CaughtUp] = []

        async def follow() -> None:
            async with store.subscribe(after=5) as items:
                async for item in items:
                    got.append(item)
                    if len(got) == 25 + 1 + 10:
                        return

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                while len(got) < 26:
                    await trio.lowlevel.checkpoint()
                for number in range(30, 40):
                    await store.append("order", [es.NewEvent("T")], number)
        caught_up = got.pop(25)
        assert isinstance(caught_up, CaughtUp)
        assert caught_up.sequence == 30
        assert [item.sequence for item in got] == list(range(6, 41))


async def test_a_filtered_subscription_delivers_what_matches_and_nothing_twice(opening: Opener) -> None:
    async with opening() as store:
        got: list[str] = []

        async def follow() -> None:
            async for item in store.subscribe(types=["B"], aggregate_prefix="order-1"):
                got.append("caught up" if isinstance(item, CaughtUp) else item.command_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for number in range(40):
                events = [es.NewEvent("AB"[number % 2])]
                await store.append(f"order-{number % 3}", events, es.ANY, f"c-{number}")
            due = [f"c-{number}" for number in range(40) if number % 2 and number % 3 == 1]
            with trio.fail_after(60):
                while len(got) <= len(due):
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert [name for name in got if name != "caught up"] == due
        assert got.count("caught up") == 1


async def test_a_subscription_sees_nothing_before_it_is_durable(opening: Opener, disk: SimulatedDisk) -> None:
    async with opening() as store, trio.open_nursery() as nursery:
        await store.append("warm-up", [es.NewEvent("T")], 0)
        got: list[Event | CaughtUp] = []

        async def follow() -> None:
            async for item in store.subscribe(after=1):
                got.append(item)

        nursery.start_soon(follow)
        with trio.fail_after(60):
            while not got:
                await trio.lowlevel.checkpoint()
        with slow(disk):
            nursery.start_soon(store.append, "order", [es.NewEvent("T")], 0)
            await trio.testing.wait_all_tasks_blocked()
            assert len(got) == 1
        with trio.fail_after(60):
            while len(got) < 2:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_scans_that_wait_for_the_disk_do_not_delay_other_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, pread = threading.Event(), os.pread

    def stuck(descriptor: int, length: int, offset: int) -> bytes:
        free.wait(30)
        return pread(descriptor, length, offset)

    async with es.open_store(tmp_path / "data", replace(ROOMY, sort=False)) as store, trio.open_nursery() as nursery:
        await store.append("order-1", [es.NewEvent("T")], 0)
        monkeypatch.setattr(os, "pread", stuck)
        for _ in range(60):
            nursery.start_soon(everything, store)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        with trio.fail_after(20):
            for version in range(1, 30):
                await store.append("order-1", [es.NewEvent("T")], version)
            await store.append_many([es.Commit("order-2", [es.NewEvent("T")], es.ANY) for _ in range(1_000)])
            assert await store.version("order-1") == 30
            await store._threads.replay(lambda: None)
        assert not free.is_set()
        free.set()
