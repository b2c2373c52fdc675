"""Completed files are sorted in the background."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.chunks.front import Segment
from eventstore.records.slots import slot_of
from eventstore.records.splits import Split, slot_filter
from eventstore.store.open_store import open_store, warm_up
from eventstore.store.opening import open_folder
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ROOMY, SMALL_FILES, Opener, everything, left_after
from tests.store.stepped import DATA
from tests.waiting import eventually


async def test_completed_files_are_sorted_in_the_background_during_appends_and_reads(
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


async def test_a_failed_sort_is_retried_and_no_file_is_sorted_out_of_order(
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
    assert "next attempt in" in caplog.text


async def test_no_sort_begins_while_maintenance_rests(opening: Opener, mock_clock: trio.testing.MockClock) -> None:
    async with opening(replace(SMALL_FILES, sort=True)) as store:
        store.maintenance.rest(10.0)
        store.maintenance.rest(1.0)  # the longer one counts
        for number in range(60):
            await store.append("order-1", [es.NewEvent("T", bytes(100))], number)
        for seconds in (0.0, 9.9):
            mock_clock.jump(seconds)
            for _ in range(1_000):  # steps of the sorter would be done between these
                await trio.to_thread.run_sync(list)
            assert store.maintenance.sorted_files == 0
        mock_clock.jump(0.2)
        await store.maintenance.wait_until_sorted()
        assert store.maintenance.sorted_files == len(store.engine.files.headers) - 1 > 1


async def test_rests_that_follow_each_other_put_off_no_file_twice(opening: Opener, mock_clock: trio.testing.MockClock) -> None:
    async with opening(replace(SMALL_FILES, sort=True)) as store:
        store.maintenance.rest(10.0)
        for number in range(60):
            await store.append("order-1", [es.NewEvent("T", bytes(100))], number)
        assert len(store.engine.files.headers) > 3
        for sorted_files in (1, 2, 3):
            mock_clock.jump(9.0)
            store.maintenance.rest(10.0)  # as by splits, of which each has ended before the next one is asked for
            mock_clock.jump(1.5)
            while store.maintenance.sorted_files < sorted_files:
                await trio.to_thread.run_sync(list)


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


class Unreachable:
    """Followers that answer nothing: it stays open what is committed."""

    def refusal(self) -> None: ...
    def shortage(self) -> None: ...
    def taken(self, segment: Segment) -> None: ...
    def written(self, segment: Segment) -> None: ...

    def durability(self) -> int:
        return 1

    def failed(self, error: es.EventStoreError) -> None:
        raise error


async def test_a_leader_sorts_nothing_before_it_is_known_that_its_log_stays(
    opening: Opener, disk: SimulatedDisk, tmp_path: Path
) -> None:
    async with opening(replace(SMALL_FILES, sort=False)) as store:
        for number in range(60):
            await store.append("order-1", [es.NewEvent("T", bytes(100))], number)

    async def sorted_files(*, committed: bool) -> int:
        settings = replace(SMALL_FILES, sort=True)
        async with open_store(DATA, settings, files=disk, directory=tmp_path / "lmdb", replication=Unreachable()) as store:
            if committed:
                store.committer.commit(1, 0)
                await store.maintenance.wait_until_sorted()
            for _ in range(1_000):  # steps of the sorter would be done between these
                await trio.to_thread.run_sync(list)
        async with opening() as store:
            return sum(header.sorted for header in store.engine.files.headers)

    assert await sorted_files(committed=False) == 0
    assert await sorted_files(committed=True) > 1


@pytest.mark.heavy
async def test_a_new_leader_loads_what_changed_last_while_it_serves(tmp_path: Path) -> None:
    settings = replace(SMALL_FILES, sort=True)
    async with es.open_store(tmp_path, settings) as store:
        for number in range(60):
            await store.append(f"order-{number}", [es.NewEvent("T", bytes(100))], 0)
        await store.maintenance.wait_until_sorted()
    async with open_store(tmp_path, settings, epoch=2) as store:
        cache = store.engine.version_cache
        assert len(cache) == 0, "its clients do not wait for that"

        async def is_warm() -> bool:
            return all(cache.peek(f"order-{number}") is not None for number in range(40))

        await eventually(is_warm, "the aggregates that changed last are known")
        misses = cache.misses
        assert (await store.append("order-30", [es.NewEvent("T", b"")], 1)).version == 2
        assert cache.misses == misses


@pytest.mark.heavy
async def test_a_small_cache_is_left_with_what_changed_last(tmp_path: Path) -> None:
    count = 6_000
    settings = replace(ROOMY, sort=True, cached_bytes_max=1 << 20)
    async with es.open_store(tmp_path, settings) as store:
        names = [f"order-{number}" for number in range(count)]
        await store.append_many([es.Commit(name, [es.NewEvent("T", bytes(300))], 0) for name in names])
        await store.maintenance.wait_until_sorted()
    opened = await trio.to_thread.run_sync(partial(open_folder, tmp_path, settings, epoch=2))
    try:
        await warm_up(opened.engine)
        cache = opened.engine.version_cache
        assert len(cache) < count, "they do not all fit"
        assert all(cache.peek(name) is not None for name in names[-1_000:])
    finally:
        await trio.to_thread.run_sync(opened.close)


async def test_a_store_measures_after_a_split_and_what_is_sorted_later(opening: Opener) -> None:
    async with opening(replace(SMALL_FILES, sort=True)) as store:
        for number in range(120):
            await store.append(f"order-{number % 5}", [es.NewEvent("T", bytes(100))], number // 5)
        await store.maintenance.wait_until_sorted()
        stats = await store.stats()
        assert (stats["shared_bytes"], stats["foreign_bytes"]) == (0, 0)
        kept = slot_of("order-1")
        store.engine.slot_filter = slot_filter(0, ((kept, kept),), (Split(2, 0, 1, 1_000),))

        async def measured() -> bool:
            stats = await store.stats()
            shared, foreign = int(stats["shared_bytes"] or 0), int(stats["foreign_bytes"] or 0)
            return shared > 0 and 0.75 < foreign / shared < 0.85

        await eventually(measured, "what four of five aggregates have is measured")
        before = int((await store.stats())["foreign_bytes"] or 0)
        for number in range(120, 240):
            await store.append(f"order-{number % 5}", [es.NewEvent("T", bytes(100))], number // 5)
        await store.maintenance.wait_until_sorted()

        async def grown() -> bool:
            return int((await store.stats())["foreign_bytes"] or 0) > 1.8 * before

        await eventually(grown, "files that were sorted since are measured as well")
