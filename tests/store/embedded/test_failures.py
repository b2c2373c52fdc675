"""The embedded store on a disk that fails, is full, or loses power."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.store.embedded import EmbeddedStore
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.embedded.held_disk import SMALL_FILES, Opener, everything, left_after, slow


async def test_a_failed_sync_poisons_appends_are_refused_and_reads_go_on(opening: Opener, disk: SimulatedDisk) -> None:
    async with opening() as store:
        await store.append("order", [es.NewEvent("T")], 0)
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(es.Poisoned):
            await store.append("order", [es.NewEvent("T")], 1)
        assert store.committer.poisoned.is_set()
        with pytest.raises(es.Poisoned):
            await store.append("other", [es.NewEvent("T")], 0)
        assert len(await everything(store)) == 1
        assert [event.version async for event in store.read("order")] == [1]
        assert await store.version("order") == 1
        assert (await store.stats())["poisoned"]


async def test_all_callers_in_and_after_a_failed_batch_get_the_error(opening: Opener, disk: SimulatedDisk) -> None:
    async with opening() as store:
        await store.append("order", [es.NewEvent("T")], 0)
        errors: list[es.EventStoreError] = []

        async def append(number: int) -> None:
            try:
                await store.append(f"order-{number}", [es.NewEvent("T")], 0)
            except es.EventStoreError as error:
                errors.append(error)

        disk.fail("write_at", 1, errno.EIO, path_contains=".events")
        async with trio.open_nursery() as nursery:
            with slow(disk):
                for number in range(10):
                    nursery.start_soon(append, number)
                    if number == 4:
                        await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked()
        assert [type(error) for error in errors] == [es.Poisoned] * 10
        assert len({id(error) for error in errors}) == 10, "each its own: a traceback is not shared"
        assert len(await everything(store)) == 1


async def test_a_full_disk_refuses_appends_until_there_is_space(opening: Opener, disk: SimulatedDisk) -> None:
    async with opening() as store:
        await store.append("order", [es.NewEvent("T")], 0)
        disk.capacity_bytes = disk.allocated_bytes
        large = [es.NewEvent("T", bytes(200_000))]
        for _ in range(3):
            with pytest.raises(es.StorageFull):
                await store.append("order", large, 1, "large")
        assert len(await everything(store)) == 1
        disk.capacity_bytes = None
        assert await store.append("order", large, 1, "large") == es.Committed("order", 2, 2)
        assert not store.committer.poisoned.is_set()


async def test_what_a_full_disk_takes_back_refuses_no_commit(opening: Opener, disk: SimulatedDisk) -> None:
    """A condition, and a command id, were refused for an event that was on its way: it came to nothing, so its place is no
    reason, and will be another event's.
    """
    claimed, query = [es.NewEvent("Claimed", bytes(200_000), tags=["name:ann"])], es.Query(tags=["name:ann"])
    errors = dict[str, es.EventStoreError]()
    async with opening() as store:
        await store.append("order", [es.NewEvent("T")], 0)
        disk.capacity_bytes = disk.allocated_bytes

        async def write(name: str, call: Callable[[], Awaitable[object]]) -> None:
            try:
                await call()
            except es.EventStoreError as error:
                errors[name] = error

        other = [es.Write("order", [es.NewEvent("Claimed", tags=["name:ann"])], 1)]
        async with trio.open_nursery() as nursery:
            with slow(disk):
                nursery.start_soon(write, "first", lambda: store.append("order", claimed, 1, "c"))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(write, "condition", lambda: store.commit(other, unless=query, after=1, command_id="d"))
                nursery.start_soon(write, "command", lambda: store.append("order", [es.NewEvent("Else")], 1, "c"))
                await trio.testing.wait_all_tasks_blocked()
        assert len(await everything(store)) == 1
        assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(
            ("first", "condition", "command"), es.StorageFull
        )
        disk.capacity_bytes = None
        assert len(await store.commit(other, unless=query, after=1, command_id="d")) == 1
        with pytest.raises(es.ConditionFailed):
            await store.commit(other, unless=query, after=1, command_id="e")


@pytest.mark.parametrize(
    ("durability", "mode"),
    [
        *(("sync", mode) for mode in CRASH_MODES),
        ("async", "lost"),
        *(pytest.param("async", mode, marks=pytest.mark.long) for mode in ("kept", "sectors")),
    ],
)
async def test_commits_acknowledged_to_concurrent_clients_survive_a_crash(
    opening: Opener, tmp_path: Path, mode: CrashMode, durability: Literal["sync", "async"]
) -> None:
    """With threads the order of operations varies: the seed fixes where the crash is, but not what it interrupts."""
    settings = replace(SMALL_FILES, sort=True, durability=durability)
    for seed in range(6):
        disk, acknowledged = SimulatedDisk(seed), []

        async def client(store: EmbeddedStore, name: str, acknowledged: list[es.Committed]) -> None:
            for number in range(30):
                try:
                    events = [es.NewEvent("T", bytes(40 * (number % 5)))] * (1 + number % 3)
                    done = await store.append(f"order-{number % 4}", events, es.ANY, f"{name}-{number}")
                except es.EventStoreError:
                    return
                acknowledged.append(done)

        with suppress(SimulatedCrash, es.EventStoreError):
            async with opening(settings, disk) as store, trio.open_nursery() as nursery:
                disk.crash_at(15 + 53 * seed)
                for place in range(4):
                    nursery.start_soon(client, store, f"client-{place}", acknowledged)
        state = left_after(disk, tmp_path, mode)
        assert [event.sequence for event in state] == list(range(1, len(state) + 1))
        if durability == "sync" or mode == "kept":
            for done in acknowledged:
                event = state[done.sequence - 1]
                assert (event.aggregate_id, event.version) == (done.aggregate_id, done.version), seed
