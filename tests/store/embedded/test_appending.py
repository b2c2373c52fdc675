"""Appends to the embedded store: durable on return, in batches, bounded, and safe to cancel."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.chunks.writing.writer_thread import WritePace
from eventstore.records.raw_commit import encode_commit
from eventstore.store.embedded import EmbeddedStore
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ROOMY, Opener, everything, left_after, slow
from tests.waiting import wait_until


async def test_an_append_is_durable_when_it_returns(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async with opening() as store:
        done = await store.append("order-1", [es.NewEvent("Placed", {"total": 12}), es.NewEvent("Paid")], 0, "c-1")
        assert done == es.Committed("order-1", 2, 2)
        (first, second) = left_after(disk, tmp_path)
        assert (first.type, first.json(), first.command_id) == ("Placed", {"total": 12}, "c-1")
        assert (second.type, second.data, second.version) == ("Paid", b"", 2)


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


async def test_a_conflict_with_a_commit_in_flight_waits_until_that_is_durable(opening: Opener, disk: SimulatedDisk) -> None:
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
            assert await store.version("order") == 0, "commits that are not durable are not visible"
            assert await store.find_command("order", "first") is None
        with trio.fail_after(60):
            while len(told) < 3:
                await trio.lowlevel.checkpoint()
        assert sorted(told) == ["first won", "first won", "second lost"]


async def test_an_append_cancelled_while_it_waits_is_stored_and_its_retry_is_a_duplicate(
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


async def test_an_append_cancelled_before_it_began_is_not_stored(opening: Opener) -> None:
    async with opening() as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.append("order", [es.NewEvent("T")], 0, "cancelled")
        assert await everything(store) == []


async def test_waiting_bytes_are_bounded_and_further_appends_wait(opening: Opener, disk: SimulatedDisk) -> None:
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
            free.wait(5)  # a wait on the event loop must fail below, not hang

    async with opening(replace(ROOMY, durability=durability, flush_interval_s=60)) as store:
        writer, committer, version = store.engine.writer, store.committer, 0
        while not committer.batches_in_place:  # a stall of the machine keeps it on the thread for a while
            version = (await store.append("order-1", [es.NewEvent("T")], version)).version
        writer.zero_ahead.detach()
        writer.zero_ahead.attach(store.engine.files.folder.chunk_path(1), writer.end)
        thread = threading.Thread(target=keep_busy)
        thread.start()
        assert busy.wait(5)
        writer.zero_ahead.reserved(writer.end + 65_536)
        wait_until(lambda: writer.zero_ahead._slice_start is not None, "a slice is begun")
        before = committer.batches_in_place
        raw = encode_commit("order-1", [es.NewEvent("T", bytes(8_000))], version, "c", None)
        submission = store._submit([raw])
        assert committer.batches_in_place == before
        assert not free.is_set()
        free.set()
        await submission.wait()
        thread.join()
        assert len(await everything(store)) == version + 1


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_slow_writes_do_not_run_on_the_event_loop(opening: Opener, durability: Literal["sync", "async"]) -> None:
    async with opening(replace(ROOMY, durability=durability, flush_interval_s=60, file_size_bytes=1 << 24)) as store:
        for version in range(20):
            await store.append("order-1", [es.NewEvent("T")], version)
        committer, zero_ahead = store.committer, store.engine.writer.zero_ahead
        in_place = []
        for version, size in ((20, 200_000), (21, 300_000), (22, 200_000)):
            wait_until(lambda: zero_ahead._slice_start is None, "nothing is written ahead")
            before, committer.pace = committer.batches_in_place, WritePace()  # a busy disk is another reason
            await store.append("order-1", [es.NewEvent("T", bytes(size))], version)
            in_place.append(committer.batches_in_place - before)
        assert in_place == [1, 0, 1]


async def test_a_lone_writer_is_served_in_place_and_other_tasks_run(opening: Opener) -> None:
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
