"""Planned faults: which operations fail, and the state that a failed one leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.simulated_disk import SECTOR_BYTES, SimulatedDisk
from tests.simulated_disk.scenarios import FOLDER, SEEDS, A, B, new_disk, new_file, outcomes


def test_the_planned_operation_fails_and_those_around_it_do_not() -> None:
    disk = new_disk()
    first, second = new_file(disk, b"abc", A), new_file(disk, b"xyz", B)
    disk.fail("read_at", 2, errno.EIO, times=2, path_contains="/a")
    assert first.read_at(0, 3) == b"abc"
    assert second.read_at(0, 3) == b"xyz"
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error: '/data/a'") as failure:
            first.read_at(0, 3)
        assert failure.value.errno == errno.EIO
        assert second.read_at(0, 3) == b"xyz"
    assert first.read_at(0, 3) == b"abc"


def test_every_operation_can_be_made_to_fail_without_effect() -> None:
    disk = new_disk()
    file = new_file(disk, b"abc")
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open(A),
        "create": lambda: disk.open(B, create=True),
        "names": lambda: disk.names(FOLDER),
        "exists": lambda: disk.exists(A),
        "make_folder": lambda: disk.make_folder(FOLDER / "sub"),
        "rename": lambda: disk.rename(A, B),
        "remove": lambda: disk.remove(A),
        "sync_folder": lambda: disk.sync_folder(FOLDER),
        "lock": lambda: disk.lock(FOLDER / "lock"),
        "read_at": lambda: file.read_at(0, 1),
        "sync": file.sync,
        "truncate": lambda: file.truncate(0),
        "size": file.size,
        "map": file.map,
    }
    for operation, call in calls.items():
        disk.fail(operation, 1, errno.EMFILE)
        with pytest.raises(OSError) as failure:
            call()
        assert failure.value.errno == errno.EMFILE
        assert disk.names(FOLDER) == ["a"]
        assert disk.content(A) == b"abc"


def test_a_misspelt_operation_is_refused() -> None:
    with pytest.raises(AssertionError, match="fsync"):
        new_disk().fail("fsync", 1, errno.EIO)


def test_a_failed_write_leaves_a_prefix_of_its_data() -> None:
    lengths = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = new_file(disk, b"o" * 5_000)
        disk.fail("write_at", 1, errno.ENOSPC)
        with pytest.raises(OSError):
            file.write_at(0, [b"n" * 5_000])
        written = disk.content(A).count(b"n")
        assert disk.content(A) == b"n" * written + b"o" * (5_000 - written)
        lengths.add(written)
    assert 0 in lengths
    assert 5_000 not in lengths
    assert len(lengths) > 5


def test_a_failed_preallocation_may_have_extended_the_file_by_a_part() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = new_file(disk, b"abc")
        disk.fail("preallocate", 1, errno.ENOSPC)
        with pytest.raises(OSError):
            file.preallocate(5_000)
        assert disk.content(A) == b"abc".ljust(file.size(), b"\0")
        sizes.add(file.size())
    assert 3 in sizes
    assert 5_000 not in sizes
    assert len(sizes) > 5


def test_after_a_failed_sync_the_next_one_makes_only_later_writes_durable() -> None:
    disk = new_disk()
    file = new_file(disk, b"o" * 3 * SECTOR_BYTES)
    file.write_at(0, [b"1" * SECTOR_BYTES])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.write_at(2 * SECTOR_BYTES, [b"2" * SECTOR_BYTES])
    file.sync()
    assert file.read_at(0, 1) == b"1", "reads do not show that anything is wrong"
    assert disk.crash("lost").content(A) == b"o" * 2 * SECTOR_BYTES + b"2" * SECTOR_BYTES


def test_after_a_failed_sync_the_data_may_still_be_on_the_disk() -> None:
    def fail_once(disk: SimulatedDisk) -> None:
        file = new_file(disk, b"o")
        file.write_at(0, [b"n"])
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(OSError):
            file.sync()
        file.sync()

    assert {after.content(A) for after in outcomes(fail_once)} == {b"o", b"n"}


def test_after_a_failed_sync_the_size_is_not_made_durable_either() -> None:
    disk = new_disk()
    file = new_file(disk, b"abc")
    file.write_at(3, [b"d" * 5_000])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert disk.crash("lost").content(A) == b"abc"
    assert {len(disk.crash("sectors").content(A)) for _ in range(40)} >= {3, 5_003}

    disk = disk.crash("kept")
    file = disk.open(A, write=True)
    file.write_at(600, [b"e" * 10])
    file.sync()
    survivor = disk.crash("lost").content(A)
    assert len(survivor) == 610, "a write brings the size up to its own end"
    assert survivor == b"abc" + bytes(509) + b"d" * 88 + b"e" * 10, "and the rest of its sector"


def test_a_truncation_is_made_durable_by_the_sync_after_the_failed_one() -> None:
    disk = new_disk()
    file = new_file(disk, b"o" * 5_000)
    file.truncate(1_000)
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.preallocate(3_000)
    file.sync()
    assert disk.crash("lost").content(A)[1_024:] == bytes(3_000 - 1_024), "cut bytes never come back"


def test_a_failed_sync_is_not_forgotten_when_the_process_is_killed() -> None:
    disk = new_disk()
    file = new_file(disk, b"old")
    file.write_at(0, [b"new"])
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    restarted = disk.crash("kept")
    again = restarted.open(A, write=True)
    assert again.read_at(0, 3) == b"new"
    again.sync()
    assert restarted.crash("lost").content(A) == b"old"


def test_data_written_again_after_a_failed_sync_is_made_durable() -> None:
    disk = new_disk()
    file = new_file(disk, b"old")
    disk.fail("sync", 1, errno.EIO)
    file.write_at(0, [b"n" * 5_000])
    with pytest.raises(OSError):
        file.sync()
    file.write_at(0, [b"n" * 5_000])
    file.sync()
    assert disk.crash("lost").content(A) == b"n" * 5_000


def test_a_failed_sync_of_a_folder_leaves_its_changes_unsynced() -> None:
    disk = new_disk()
    disk.open(A, create=True)
    disk.fail("sync_folder", 1, errno.EIO)
    with pytest.raises(OSError):
        disk.sync_folder(FOLDER)
    assert disk.durable_names(FOLDER) == []
    disk.sync_folder(FOLDER)
    assert disk.durable_names(FOLDER) == ["a"]
