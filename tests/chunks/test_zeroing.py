"""Zeros ahead of the writer: never over a record, never a long wait for it, and not needed for correctness."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest

from eventstore.chunks.writing.zeroing import AHEAD_BYTES, SLICE_BYTES, ZeroAhead
from tests.simulated_disk import SimulatedDisk, SimulatedFile
from tests.waiting import DEADLINE_SECONDS, wait_until

PATH = Path("/data/chunk")
PAGE = 4096


def attached(size: int = 4 * SLICE_BYTES, end: int = PAGE) -> tuple[SimulatedDisk, SimulatedFile, ZeroAhead]:
    """Returns a reserved file of ones, so that zeros are visible; the writer is at `end`."""
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    disk.replace(PATH, b"\1" * size)
    zeros = ZeroAhead(disk)
    zeros.attach(PATH, end)
    zeros.reserved(size)
    return disk, disk.open(PATH, write=True), zeros


def zeroed(disk: SimulatedDisk) -> list[tuple[int, int]]:
    """Returns the ranges of zeros in the file."""
    content, found, at = disk.content(PATH), [], 0
    while (start := content.find(0, at)) >= 0:
        stop = content.find(1, start)
        at = stop if stop >= 0 else len(content)
        found.append((start, at))
    return found


def test_only_reserved_and_unclaimed_space_is_zeroed() -> None:
    disk, _, zeros = attached()
    zeros.claim(PAGE, PAGE + 100)
    zeros.reserved(3 * PAGE + 5)
    while zeros.step():
        pass
    assert zeroed(disk) == [(2 * PAGE, 3 * PAGE + 5)]
    zeros.claim(PAGE + 100, 2 * PAGE + 1)
    zeros.reserved(5 * PAGE)
    while zeros.step():
        pass
    assert zeroed(disk) == [(2 * PAGE, 5 * PAGE)]


def test_zeros_keep_a_bounded_lead_and_are_synced() -> None:
    disk, _, zeros = attached(AHEAD_BYTES + 10 * SLICE_BYTES)
    zeros.claim(PAGE, PAGE + 100)
    steps = 0
    while zeros.step():
        steps += 1
    assert steps == AHEAD_BYTES // SLICE_BYTES
    assert zeroed(disk) == [(2 * PAGE, 2 * PAGE + AHEAD_BYTES)]
    assert disk.crash("lost").content(PATH) == disk.content(PATH)


def test_large_batches_get_no_zeros() -> None:
    disk, _, zeros = attached()
    zeros.claim(PAGE, PAGE + 10 * SLICE_BYTES // 8)
    assert not zeros.step()
    zeros.claim(PAGE + 10 * SLICE_BYTES // 8, PAGE + 10 * SLICE_BYTES // 8 + 50)
    assert zeros.step()
    assert zeroed(disk)[0][0] >= PAGE + 10 * SLICE_BYTES // 8 + 50


def test_a_detached_file_is_left_alone() -> None:
    disk, _, zeros = attached()
    zeros.detach()
    assert not zeros.step()
    zeros.detach()
    assert zeroed(disk) == []


def test_a_failed_sync_of_zeros_is_reported_to_the_writer_and_a_full_disk_is_not() -> None:
    for operation, code, told in (("sync", errno.EIO, True), ("write_at", errno.EIO, True), ("write_at", errno.ENOSPC, False)):
        disk, _, zeros = attached()
        disk.fail(operation, 1, code)
        assert zeros.step()
        assert (zeros.failure is not None) == told
        assert not zeros.step(), "and nothing more is zeroed"
        zeros.claim(PAGE, 2 * PAGE)  # does not wait forever


def test_a_file_that_cannot_be_opened_again_gets_no_zeros() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    disk.replace(PATH, bytes(PAGE))
    disk.fail("open", 1, errno.EMFILE)
    zeros = ZeroAhead(disk)
    zeros.attach(PATH, PAGE)
    zeros.reserved(4 * PAGE)
    zeros.claim(PAGE, PAGE + 7)
    assert not zeros.step()
    zeros.detach()


def test_a_claim_that_would_wait_can_be_refused_instead() -> None:
    disk, _, zeros = attached()
    zeros.claim(PAGE, PAGE + 100)
    thread = threading.Thread(target=zeros.step, daemon=True)
    with disk._lock:  # the disk is busy: the slice is not finished until it is free
        thread.start()
        wait_until(lambda: zeros._slice_start is not None, "a slice is begun")
        assert zeros.try_claim(PAGE + 100, 2 * PAGE)
        assert not zeros.try_claim(2 * PAGE, 2 * PAGE + 1)
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert zeros.try_claim(2 * PAGE, 2 * PAGE + 1)
    zeros.claim(2 * PAGE, 2 * PAGE + 1)  # again, as the writer does: returns at once
    zeros.step()
    assert zeroed(disk) == [(2 * PAGE, 2 * PAGE + 2 * SLICE_BYTES)]


def test_while_a_thread_zeroes_every_record_of_a_busy_writer_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.chunks.writing.zeroing.SLICE_BYTES", 3 * PAGE)  # so that they collide often
    disk, file, zeros = attached(2 * SLICE_BYTES)
    thread = threading.Thread(target=zeros.run, daemon=True)
    thread.start()
    rng, end, written = random.Random(1), PAGE, bytearray()
    while end < 2 * SLICE_BYTES - 20_000:
        data = bytes([rng.randrange(2, 256)]) * rng.randrange(1, 9_000)
        zeros.claim(end, end + len(data))
        file.write_at(end, [data])
        written += data
        end += len(data)
    zeros.detach()
    zeros.stop()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert disk.content(PATH)[PAGE:end] == bytes(written)
