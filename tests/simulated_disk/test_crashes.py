"""Crashes: at every operation, in every mode, and repeatable by their seed."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from eventstore.chunks.files import Files
from tests.simulated_disk import CRASH_MODES, SECTOR_BYTES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.simulated_disk.scenarios import FOLDER, SEEDS, A, B, new_disk, new_file


def test_after_a_crash_the_old_disk_and_its_handles_refuse_everything() -> None:
    disk = new_disk()
    file = new_file(disk, b"abc")
    disk.crash("kept")
    refused: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        file.sync,
        file.size,
        file.map,
        lambda: disk.open(A),
        lambda: disk.names(FOLDER),
        lambda: disk.exists(A),
        lambda: disk.sync_folder(FOLDER),
        lambda: disk.lock(FOLDER / "lock"),
    ]
    for call in refused:
        with pytest.raises(OSError, match="this disk has crashed"):
            call()
    file.close()
    assert disk.content(A) == b"abc"


def test_one_state_can_crash_in_many_ways() -> None:
    disk = new_disk()
    new_file(disk, b"o").write_at(0, [b"n"])
    assert {disk.crash("sectors").content(A) for _ in range(40)} == {b"o", b"n"}
    assert disk.crash("lost").content(A) == b"o"
    assert disk.crash("kept").content(A) == b"n"


def test_a_planned_crash_stops_the_disk_before_the_operation_and_for_good() -> None:
    disk = new_disk()
    file = new_file(disk, b"old")
    disk.crash_at(2)
    file.write_at(0, [b"new"])
    with pytest.raises(SimulatedCrash):
        file.sync()
    assert disk.crashed
    for call in (file.sync, file.size, lambda: disk.names(FOLDER), lambda: disk.rename(A, B)):
        with pytest.raises(SimulatedCrash):
            call()
    file.close()
    after = disk.crash("lost")
    assert not after.crashed
    assert after.content(A) == b"old"


def test_a_crash_in_a_write_leaves_any_prefix_of_it() -> None:
    data = bytes(range(1, 251)) * 20
    lengths = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = new_file(disk)
        disk.crash_at(1)
        with pytest.raises(SimulatedCrash):
            file.write_at(0, [data[:100], data[100:]])
        content = disk.crash("kept").content(A)
        assert content == data[: len(content)]
        lengths.add(len(content))
    assert {0, len(data)} <= lengths
    assert any(0 < length < len(data) and length % SECTOR_BYTES == 0 for length in lengths)
    assert any(length % SECTOR_BYTES for length in lengths - {len(data)})


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_an_observer_of_each_operation_sees_the_state_a_crash_there_would_leave(mode: CrashMode) -> None:
    def script(disk: SimulatedDisk) -> None:
        file, removed = disk.open(A, create=True), disk.open(B, create=True)
        disk.remove(B)
        removed.write_at(0, [b"nobody sees this"])
        for number in range(4):
            file.write_at(700 * number, [bytes([number + 1]) * 2_000])
            file.preallocate(4_000 + 600 * number)
            if number % 2:
                file.sync()
                disk.sync_folder(FOLDER)
        file.truncate(1_100)
        disk.rename(A, B)
        disk.make_folder(FOLDER / "sub")

    def left(disk: SimulatedDisk) -> tuple[list[str], list[str], dict[str, bytes]]:
        after = disk.crash(mode)
        names = after.names(FOLDER)
        return after.trace, names, {name: after.content(FOLDER / name) for name in names if name != "sub"}

    for seed in range(20):
        shown: list[tuple[list[str], list[str], dict[str, bytes]]] = []
        watched = new_disk(seed)
        watched.at_each_operation(lambda disk: shown.append(left(disk)))  # noqa: B023 # called in this round
        script(watched)
        for nth, found in enumerate(shown, 1):
            disk = new_disk(seed)
            disk.crash_at(nth)
            with pytest.raises(SimulatedCrash):
                script(disk)
            assert found == left(disk), f"seed {seed}, before operation {nth}"
        assert len(shown) == watched.operations - new_disk().operations


def test_operations_counts_exactly_the_calls_that_change_the_disk() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(FOLDER / "sub")
    disk.make_folder(FOLDER / "sub")
    assert disk.operations == 2
    file = disk.open(A, create=True)
    file.write_at(0, [b"abc"])
    file.preallocate(100)
    file.truncate(50)
    file.sync()
    disk.rename(A, B)
    disk.sync_folder(FOLDER)
    disk.remove(B)
    assert disk.operations == 10
    disk.lock(FOLDER / "lock").release()
    disk.open(FOLDER / "lock").read_at(0, 1)
    file.size()
    file.map()
    file.close()
    disk.names(FOLDER)
    disk.exists(A)
    assert disk.operations == 10


def replace_durably(files: Files, content: bytes) -> None:
    file = files.open(B, create=True)
    file.write_at(0, [content])
    file.sync()
    file.close()
    files.rename(B, A)
    files.sync_folder(FOLDER)


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_replacing_a_file_durably_survives_a_crash_at_every_operation(mode: CrashMode) -> None:
    old, new = b"o" * 2_000, b"n" * 3_000
    rehearsal = new_disk()
    replace_durably(rehearsal, new)
    count = rehearsal.operations - new_disk().operations
    assert count == 5
    for seed in range(20):
        for nth in range(1, count + 2):
            disk = new_disk(seed)
            disk.replace(A, old)
            disk.crash_at(nth)
            if nth <= count:
                with pytest.raises(SimulatedCrash):
                    replace_durably(disk, new)
            else:
                replace_durably(disk, new)
            content = disk.crash(mode).content(A)
            assert content == new if nth > count else content in (old, new), "\n".join(disk.trace)


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_a_forgotten_sync_is_detected(forgotten: str) -> None:
    old, new = b"o" * 2_000, b"n" * 3_000
    left = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.replace(A, old)
        file = disk.open(B, create=True)
        file.write_at(0, [new])
        if forgotten != "sync":
            file.sync()
        disk.rename(B, A)
        if forgotten != "sync_folder":
            disk.sync_folder(FOLDER)
        left.add(disk.crash("sectors").content(A))
    assert len(left - {new}) >= 1


def test_the_same_seed_gives_the_same_disk_and_another_seed_another() -> None:
    def run(seed: int) -> tuple[list[str], bytes, list[str]]:
        disk = new_disk(seed)
        file = new_file(disk, b"o" * 20_000)
        disk.fail("write_at", 2, errno.ENOSPC)
        file.write_at(0, [b"1" * 20_000])
        with pytest.raises(OSError):
            file.write_at(0, [b"2" * 20_000])
        disk.open(B, create=True)
        after = disk.crash("sectors")
        return after.names(FOLDER), after.content(A), after.trace

    assert run(7) == run(7)
    assert len({run(seed)[1] for seed in range(5)}) > 1


def test_the_trace_lists_the_seed_the_operations_the_faults_and_the_crash() -> None:
    disk = new_disk(42)
    disk.fail("sync", 1, errno.EIO)
    file = disk.open(A, create=True)
    file.write_at(10, [b"abc"])
    with pytest.raises(OSError):
        file.sync()
    disk.rename(A, B)
    disk.crash_at(1)
    with pytest.raises(SimulatedCrash):
        disk.sync_folder(FOLDER)
    assert disk.crash("lost").trace == [
        "SimulatedDisk(seed=42, capacity_bytes=None)",
        "1 make_folder /data",
        "2 create /data/a",
        "3 write_at /data/a offset=10 length=3",
        "4 sync /data/a",
        "errno 5 from sync /data/a",
        "5 rename /data/a /data/b",
        "6 sync_folder /data",
        "SimulatedCrash in sync_folder /data",
        "crash('lost'), outcome 1",
    ]
