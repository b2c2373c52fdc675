"""The embedded store through its public methods, under trio.

`slow` holds the simulated disk: whoever is on another thread waits for it, the event loop goes on. So a test decides what
happens while a batch is on its way to the disk, without a clock.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.chunks.header import RECORDS_FROM
from eventstore.config import StoreSettings
from eventstore.model import CaughtUp, Event
from eventstore.store.embedded import EmbeddedStore, open_store
from eventstore.store.raw_commit import encode_commit
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.stepped import DATA, Stepped, order_of_files
from tests.waiting import wait_until

ROOMY = StoreSettings(file_size_bytes=1 << 20, preallocate_bytes=64 << 10, sort=False, page_bytes=4096)
SMALL_FILES = replace(ROOMY, file_size_bytes=8192, preallocate_bytes=4096)
ASYNC = replace(ROOMY, durability="async", flush_interval_s=0.1)

Opener = Callable[..., AbstractAsyncContextManager[EmbeddedStore]]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(1)


@pytest.fixture
def opening(disk: SimulatedDisk, tmp_path: Path) -> Opener:
    """Opens the embedded store on the simulated disk."""

    @asynccontextmanager
    async def open_it(settings: StoreSettings = ROOMY, on: SimulatedDisk = disk) -> AsyncIterator[EmbeddedStore]:
        async with open_store(DATA, settings, files=on, directory=tmp_path / "lmdb") as store:
            yield store

    return open_it


def left_after(disk: SimulatedDisk, tmp_path: Path, mode: str = "lost") -> list[Event]:
    """The events that are there when the power fails now."""
    store = Stepped(disk.crash(mode), tmp_path / f"left-{mode}-{disk._outcomes}")  # type: ignore[arg-type] # a mode
    state = store.state()
    store.abandon()
    return state


@contextmanager
def slow(disk: SimulatedDisk) -> Iterator[None]:
    with disk._lock:
        yield


async def everything(store: EmbeddedStore) -> list[Event]:
    return [event async for event in store.read_all()]


# -- appending


async def test_an_append_is_durable_when_it_returns(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async with opening() as store:
        done = await store.append("order-1", [es.NewEvent("Placed", {"total": 12}), es.NewEvent("Paid")], 0, "c-1")
        assert done == es.Committed("order-1", 2, 2)
        (first, second) = left_after(disk, tmp_path)
        assert (first.type, first.json(), first.command_id) == ("Placed", {"total": 12}, "c-1")
        assert (second.type, second.data, second.version) == ("Paid", b"", 2)
        disk._outcomes = 0  # the power is back; nothing had happened


async def test_concurrent_appends_are_all_stored_and_share_their_syncs(opening: Opener, disk: SimulatedDisk) -> None:
    async with opening() as store:

        async def append(task: int) -> None:
            for number in range(5):
                await store.append(f"order-{task % 7}", [es.NewEvent("T")], es.ANY, f"c-{task}-{number}")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for task in range(50):
                    nursery.start_soon(append, task)
        events = await everything(store)
        assert len(events) == 250
        assert {event.command_id for event in events} == {f"c-{task}-{number}" for task in range(50) for number in range(5)}
        for aggregate in range(7):
            versions = [event.version async for event in store.read(f"order-{aggregate}")]
            assert versions == list(range(1, len(versions) + 1))
        assert store.committer.batches < 50, "250 appends"


async def test_of_two_writers_with_the_same_expected_version_exactly_one_wins(opening: Opener, disk: SimulatedDisk) -> None:
    results: list[object] = []

    async def write(store: EmbeddedStore, name: str, expected: int) -> None:
        try:
            results.append(await store.append("order", [es.NewEvent(name)], expected, name))
        except es.VersionConflict as conflict:
            results.append(conflict)

    async with opening() as store:
        for expected in range(20):
            results.clear()
            async with trio.open_nursery() as nursery:
                for place in range(3):
                    nursery.start_soon(write, store, f"writer-{expected}-{place}", expected)
            assert sum(isinstance(result, es.Committed) for result in results) == 1
            for conflict in (result for result in results if isinstance(result, es.VersionConflict)):
                assert (conflict.expected, conflict.actual) == (expected, expected + 1)
        assert await store.version("order") == 20


async def test_a_conflict_with_what_is_not_durable_yet_is_told_only_when_it_is(opening: Opener, disk: SimulatedDisk) -> None:
    told: list[str] = []

    async def write(store: EmbeddedStore, name: str) -> None:
        try:
            await store.append("order", [es.NewEvent(name)], 0, name)
            told.append(f"{name} won")
        except es.VersionConflict:
            told.append(f"{name} lost")

    async with opening() as store, trio.open_nursery() as nursery:
        await store.append("warm-up", [es.NewEvent("T")], 0)
        with slow(disk):
            nursery.start_soon(write, store, "first")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(write, store, "second")
            nursery.start_soon(write, store, "first")  # the same command once more
            await trio.testing.wait_all_tasks_blocked()
            assert told == []
            assert await store.version("order") == 0, "what is not durable is not visible"
            assert await store.find_command("order", "first") is None
        with trio.fail_after(60):
            while len(told) < 3:
                await trio.lowlevel.checkpoint()
        assert sorted(told) == ["first won", "first won", "second lost"]


async def test_an_append_that_is_cancelled_while_it_waits_is_stored_and_its_retry_says_so(
    opening: Opener, disk: SimulatedDisk
) -> None:
    async with opening() as store:
        await store.append("order", [es.NewEvent("T")], 0)
        outcome: list[object] = []

        async def append(scope: trio.CancelScope) -> None:
            with scope:
                outcome.append(await store.append("order", [es.NewEvent("T")], 1, "cancelled"))

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            with slow(disk):
                nursery.start_soon(append, scope)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked()
                assert scope.cancelled_caught
                assert outcome == []
        done = await store.append("order", [es.NewEvent("T")], 1, "cancelled")
        assert done == es.Committed("order", 2, 2, duplicate=True)


async def test_an_append_that_is_cancelled_before_it_began_is_not_stored(opening: Opener) -> None:
    async with opening() as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.append("order", [es.NewEvent("T")], 0, "cancelled")
        assert await everything(store) == []


async def test_what_waits_is_bounded_and_whoever_is_over_it_waits(opening: Opener, disk: SimulatedDisk) -> None:
    settings = replace(ROOMY, waiting_bytes_max=64 << 10)
    async with opening(settings) as store:
        done = 0

        async def append(number: int) -> None:
            nonlocal done
            await store.append(f"order-{number}", [es.NewEvent("T", bytes(10_000))], 0)
            done += 1

        async with trio.open_nursery() as nursery:
            with slow(disk):
                for number in range(60):
                    nursery.start_soon(append, number)
                await trio.testing.wait_all_tasks_blocked()
                assert done == 0
                assert 64 << 10 < store.committer.waiting_bytes <= (64 << 10) + 10_200
                assert store.committer.full
        assert done == 60
        assert store.committer.waiting_bytes == 0
        assert len(await everything(store)) == 60


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_lone_writer_does_not_wait_for_zeros_on_the_event_loop(
    opening: Opener, disk: SimulatedDisk, durability: Literal["sync", "async"]
) -> None:
    busy, free = threading.Event(), threading.Event()

    def keep_busy() -> None:
        with slow(disk):
            busy.set()
            free.wait(5)  # whoever waits for it on the event loop shall fail below, and not for ever

    async with opening(replace(ROOMY, durability=durability, flush_interval_s=60)) as store:
        for version in range(20):
            await store.append("order-1", [es.NewEvent("T")], version)
        writer, committer = store.engine.writer, store.committer
        assert committer.batches_in_place > 0
        writer.zero_ahead.detach()
        writer.zero_ahead.attach(store.engine.files.folder.chunk_path(1), writer.end)
        thread = threading.Thread(target=keep_busy)
        thread.start()
        assert busy.wait(5)
        writer.zero_ahead.reserved(writer.end + 65_536)
        wait_until(lambda: writer.zero_ahead._slice_start is not None, "a slice is begun")
        before = committer.batches_in_place
        raw = encode_commit("order-1", [es.NewEvent("T", bytes(8_000))], 20, "c", None)
        submission = store._submit([raw])
        assert committer.batches_in_place == before
        assert not free.is_set()
        free.set()
        await submission.wait()
        thread.join()
        assert len(await everything(store)) == 21


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_what_takes_long_to_write_is_not_written_on_the_event_loop(
    opening: Opener, durability: Literal["sync", "async"]
) -> None:
    async with opening(replace(ROOMY, durability=durability, flush_interval_s=60, file_size_bytes=1 << 24)) as store:
        for version in range(20):
            await store.append("order-1", [es.NewEvent("T")], version)
        committer, zero_ahead = store.committer, store.engine.writer.zero_ahead
        in_place = []
        for version, size in ((20, 200_000), (21, 300_000), (22, 200_000)):
            wait_until(lambda: zero_ahead._slice_start is None, "nothing is written ahead")
            before, committer._quick = committer.batches_in_place, 0.0  # a busy disk is another reason
            await store.append("order-1", [es.NewEvent("T", bytes(size))], version)
            in_place.append(committer.batches_in_place - before)
        assert in_place == [1, 0, 1]


async def test_a_lone_writer_is_served_in_place_and_the_others_have_their_turns(opening: Opener) -> None:
    async with opening() as store:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            for number in range(60):
                await store.append("order", [es.NewEvent("T")], number)
            nursery.cancel_scope.cancel()
        assert turns >= 60
        assert (await store.stats())["events"] == 60


async def test_many_commits_are_one_batch_and_each_has_its_own_outcome(opening: Opener, disk: SimulatedDisk) -> None:
    async with opening() as store:
        await store.append("a", [es.NewEvent("T")], 0, "known")
        before = store.committer.batches
        commits = [
            es.Commit("a", [es.NewEvent("T")], 1, "c-1"),
            es.Commit("a", [es.NewEvent("T")], 0, "c-2"),
            es.Commit("a", [es.NewEvent("T")], 0, "known"),
            es.Commit("a", [es.NewEvent("other")], 0, "known"),
            es.Commit("", [es.NewEvent("T")], 0, "c-3"),
            es.Commit("b", [], 0, "c-4"),
            es.Commit("b", [es.NewEvent("T")], -1, "c-5"),
            es.Commit("b", [es.NewEvent("T")], es.EXISTS, "c-6"),
            es.Commit("b", [es.NewEvent("T")], es.ANY, "c-7"),
        ]
        outcomes = await store.append_many(commits)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [
            es.Committed, es.VersionConflict, es.Committed, es.CommandIdReused, es.InvalidArgument, es.InvalidArgument,
            es.InvalidArgument, es.VersionConflict, es.Committed,
        ]  # fmt: skip
        assert outcomes[2] == es.Committed("a", 1, 1, duplicate=True)
        assert outcomes[-1] == es.Committed("b", 1, 3)
        assert store.committer.batches == before + 1
        assert await store.append_many([]) == []


# -- reading


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


async def test_senseless_arguments_are_refused_and_the_store_goes_on(opening: Opener) -> None:
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


# -- subscribing


async def test_a_subscription_catches_up_says_so_and_goes_on_live(opening: Opener) -> None:
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


# -- the disk


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


async def test_everybody_in_and_behind_a_batch_that_failed_is_told(opening: Opener, disk: SimulatedDisk) -> None:
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


async def test_a_full_disk_refuses_and_takes_again_when_there_is_space(opening: Opener, disk: SimulatedDisk) -> None:
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


@pytest.mark.parametrize("mode", CRASH_MODES)
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_what_was_acknowledged_to_concurrent_clients_survives_a_crash(
    opening: Opener, tmp_path: Path, mode: CrashMode, durability: Literal["sync", "async"]
) -> None:
    """With threads the operations come in another order each time: the seed says where the crash is, not what it meets."""
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


async def test_closing_waits_for_what_is_on_its_way(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
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


async def test_a_closed_store_says_so_and_its_subscriptions_end(opening: Opener) -> None:
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


async def test_an_error_in_the_block_leaves_it_as_it_is(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async def fail() -> None:
        async with opening() as store:
            await store.append("order", [es.NewEvent("T")], 0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert len(left_after(disk, tmp_path)) == 1


# -- durability async


async def test_async_an_append_returns_before_the_sync_and_is_durable_after_the_interval(
    opening: Opener, disk: SimulatedDisk, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with opening(ASYNC) as store:
        await store.append("order", [es.NewEvent("T")], 0)
        await store.append("order", [es.NewEvent("T")], 1)
        front = store.engine.front
        assert front.durable < front.end, "the engine is told durable only after a sync"
        assert len(await everything(store)) == 2
        mock_clock.jump(ASYNC.flush_interval_s + 0.01)
        while front.durable < front.end:
            await trio.lowlevel.checkpoint()
        assert len(left_after(disk, tmp_path)) == 2
        disk._outcomes = 0
        await store.append("order", [es.NewEvent("T")], 2)
        assert len(left_after(disk, tmp_path)) == 2, "the power failed within the interval"
        assert len(left_after(disk, tmp_path, "kept")) == 3, "a killed process loses nothing"
        disk._outcomes = 0


async def test_async_writers_that_keep_the_thread_busy_do_not_put_off_the_sync(
    opening: Opener, mock_clock: trio.testing.MockClock
) -> None:
    async with opening(replace(ASYNC, file_size_bytes=1 << 28)) as store:
        committer, front = store.committer, store.engine.front
        commits = (encode_commit("order", [es.NewEvent("T", bytes(300_000))], es.ANY, f"c-{n}", None) for n in range(100))

        def append(_: object = None) -> None:
            if (commit := next(commits, None)) is not None:
                committer.submit([commit], append, None)

        append()
        committer.kick()
        while committer.batches < 3:
            await trio.lowlevel.checkpoint()
        assert committer.writing
        mock_clock.jump(ASYNC.flush_interval_s + 0.01)
        while front.durable <= RECORDS_FROM:
            assert committer.batches < 100, "there was no sync between any two writes"
            await trio.lowlevel.checkpoint()


async def test_async_a_close_in_good_order_syncs(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async with opening(replace(ASYNC, flush_interval_s=60.0)) as store:
        for number in range(5):
            await store.append("order", [es.NewEvent("T")], number)
    assert len(left_after(disk, tmp_path)) == 5


async def test_async_a_failed_sync_poisons_once_and_is_not_tried_again(
    opening: Opener, disk: SimulatedDisk, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opening(ASYNC) as store:
        await store.append("order", [es.NewEvent("T")], 0)
        disk.fail("sync", 1, errno.EIO)
        mock_clock.jump(ASYNC.flush_interval_s + 0.01)
        while not store.committer.poisoned.is_set():
            await trio.lowlevel.checkpoint()
        with pytest.raises(es.Poisoned):
            await store.append("order", [es.NewEvent("T")], 1)
        for _ in range(5):
            mock_clock.jump(1.0)
            await trio.testing.wait_all_tasks_blocked()
        assert len(await everything(store)) == 1
    assert sum("a batch was not written" in record.message for record in caplog.records) == 1


async def test_async_files_roll_while_syncs_go_on(
    opening: Opener, disk: SimulatedDisk, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    settings = replace(ASYNC, file_size_bytes=8192, preallocate_bytes=4096, flush_interval_s=0.001)
    async with opening(settings) as store:

        async def append(task: int) -> None:
            for number in range(40):
                await store.append(f"order-{task}", [es.NewEvent("T", bytes(100))], number)
                if number % 5 == 0:
                    await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            for task in range(5):
                nursery.start_soon(append, task)
        assert len(store.engine.files.headers) > 5
    state = left_after(disk, tmp_path)
    assert len(state) == 200
    assert [event.sequence for event in state] == list(range(1, 201))


async def test_scans_that_wait_for_the_disk_hold_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            await store._on_thread(lambda: None, store._replays)
        assert not free.is_set()
        free.set()


# -- sorting in the background


async def test_completed_files_are_sorted_in_the_background_while_appends_and_reads_go_on(
    opening: Opener, disk: SimulatedDisk, tmp_path: Path
) -> None:
    async with opening(replace(SMALL_FILES, sort=True)) as store:
        for number in range(120):
            await store.append(f"order-{number % 5}", [es.NewEvent("T", bytes(100))], number // 5, f"c-{number}")
            if number % 10 == 0:
                assert len(await everything(store)) == number + 1
        with trio.fail_after(60):
            await store.maintenance.wait_until_sorted()
        stats = await store.stats()
        assert stats["sorted_files"] == stats["event_files"] - 1 > 3  # type: ignore[operator] # ints
        assert stats["unsorted_files"] == 1
        assert (await store.append("order-3", [es.NewEvent("T", bytes(100))], 0, "c-3")).duplicate
        assert [event.version async for event in store.read("order-3")] == list(range(1, 25))
    assert len(left_after(disk, tmp_path)) == 120


async def test_a_sort_that_fails_is_tried_again_and_nothing_is_sorted_out_of_order(
    opening: Opener, disk: SimulatedDisk, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opening(replace(SMALL_FILES, sort=True)) as store:
        disk.fail("create", 1, errno.ENOSPC, times=3, path_contains="0000000001.events.tmp")
        for number in range(120):
            await store.append(f"order-{number % 5}", [es.NewEvent("T", bytes(100))], number // 5)
        await store.maintenance.wait_until_sorted()
        assert store.maintenance.failures == 3
        assert store.maintenance.sorted_files == len(store.engine.files.headers) - 1
        assert len(await everything(store)) == 120
        for number in range(5):
            assert await store.version(f"order-{number}") == 24
    assert "tried again" in caplog.text


@pytest.mark.heavy
async def test_on_a_real_disk_a_child_process_sorts_and_a_restart_finds_everything(tmp_path: Path) -> None:
    settings = replace(SMALL_FILES, sort=True)
    async with es.open_store(tmp_path / "data", settings) as store:
        for number in range(40):
            await store.append(f"order-{number % 5}", [es.NewEvent("T", {"number": number})] * 3, es.ANY, f"c-{number}")
        with trio.fail_after(120):
            await store.maintenance.wait_until_sorted()
        before = await everything(store)
        assert store.maintenance.failures == 0
        assert (await store.stats())["sorted_files"] > 0  # type: ignore[operator] # an int
    async with es.open_store(tmp_path / "data", settings) as store:
        assert await everything(store) == before
        assert store.report.directory == "kept"
        assert (await store.append("order-1", [es.NewEvent("T", {"number": 1})] * 3, 0, "c-1")).duplicate


async def test_a_restart_finds_the_files_as_they_were_left(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async with opening(SMALL_FILES) as store:
        for number in range(60):
            await store.append("order", [es.NewEvent("T", bytes(100))], number)
        before = await everything(store)
    stepped = Stepped(disk, tmp_path / "lmdb")
    assert order_of_files(stepped)[-1] == "ongoing"
    assert stepped.state() == before
    stepped.close()


def test_on_asyncio_it_is_refused_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(
            es.InvalidArgument, match=r"^an embedded store needs trio; run the program with trio\.run\(main\), or"
        ):
            async with es.open_store(tmp_path / "data"):
                pass

    asyncio.run(main())
    assert not (tmp_path / "data").exists()
