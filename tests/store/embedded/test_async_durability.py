"""Durability `async`: appends return before the sync, and a clean close syncs."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.chunks.header import RECORDS_FROM
from eventstore.records.raw_commit import encode_commit
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ASYNC, Opener, everything, left_after


async def test_async_an_append_returns_before_the_sync_and_is_durable_after_the_interval(
    opening: Opener, disk: SimulatedDisk, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with opening(ASYNC) as store:
        await store.append("order", [es.NewEvent("T")], 0)
        await store.append("order", [es.NewEvent("T")], 1)
        front = store.engine.front
        assert front.durable < front.end, "data counts as durable only after a sync"
        assert len(await everything(store)) == 2
        mock_clock.jump(ASYNC.flush_interval_s + 0.01)
        while front.durable < front.end or store.committer._syncing:
            await trio.lowlevel.checkpoint()
        assert len(left_after(disk, tmp_path)) == 2
        await store.append("order", [es.NewEvent("T")], 2)
        assert len(left_after(disk, tmp_path)) == 2, "the power failed within the interval"
        assert len(left_after(disk, tmp_path, "kept")) == 3, "a killed process loses nothing"


async def test_async_writers_that_keep_the_thread_busy_do_not_delay_the_sync(
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


async def test_async_a_clean_close_syncs(opening: Opener, disk: SimulatedDisk, tmp_path: Path) -> None:
    async with opening(replace(ASYNC, flush_interval_s=60.0)) as store:
        for number in range(5):
            await store.append("order", [es.NewEvent("T")], number)
    assert len(left_after(disk, tmp_path)) == 5


async def test_async_a_failed_sync_poisons_once_and_is_not_retried(
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


async def test_async_files_roll_during_syncs(
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
