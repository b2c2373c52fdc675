"""Space, damage to the medium, maps and threads."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.simulated_disk import CRASH_MODES
from tests.simulated_disk.scenarios import FOLDER, SEEDS, A, B, new_disk, new_file


def test_a_full_disk_refuses_growth_until_space_comes_back() -> None:
    disk = new_disk(capacity_bytes=1_000)
    file = disk.open(A, create=True)
    file.preallocate(800)
    other = disk.open(B, create=True)
    with pytest.raises(OSError) as refusal:
        other.write_at(0, [b"x" * 300])
    assert refusal.value.errno == errno.ENOSPC
    assert disk.content(B) == b"x" * other.size()
    assert disk.allocated_bytes <= 1_000
    with pytest.raises(OSError):
        other.preallocate(300)
    with pytest.raises(OSError):
        other.truncate(300)
    file.write_at(0, [b"y" * 800])
    disk.capacity_bytes = 2_000
    other.write_at(0, [b"x" * 300])
    assert disk.allocated_bytes == 1_100


def test_a_write_to_a_full_disk_never_uses_more_than_its_capacity() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = new_disk(seed, capacity_bytes=1_000)
        file = new_file(disk, b"o" * 300)
        with pytest.raises(OSError):
            file.write_at(200, [b"n" * 2_000])
        sizes.add(disk.allocated_bytes)
    assert min(sizes) == 300
    assert max(sizes) == 1_000


def test_a_removed_file_takes_its_space_until_it_is_closed() -> None:
    disk = new_disk(capacity_bytes=1_000)
    file = disk.open(A, create=True)
    file.preallocate(1_000)
    disk.remove(A)
    with pytest.raises(OSError):
        disk.open(B, create=True).preallocate(1_000)
    file.close()
    disk.open(B, write=True).preallocate(1_000)


def test_the_capacity_outlives_a_crash() -> None:
    disk = new_disk(capacity_bytes=1_000).crash("kept")
    with pytest.raises(OSError):
        disk.open(A, create=True).preallocate(1_001)


def test_a_flipped_bit_is_seen_by_reads_and_survives_every_crash() -> None:
    for mode in CRASH_MODES:
        disk = new_disk()
        file = new_file(disk, b"abc")
        before = file.map()
        disk.flip(A, 1, 0)
        assert file.read_at(0, 3) == b"acc"
        assert bytes(file.map()) == b"acc"
        assert bytes(before) == b"abc"
        assert disk.crash(mode).content(A) == b"acc"


def test_a_bit_flipped_in_unsynced_data_is_flipped_in_every_version_of_it() -> None:
    disk = new_disk()
    file = new_file(disk, b"aaa")
    file.write_at(0, [b"bbb"])
    disk.flip(A, 0, 0)
    assert disk.crash("lost").content(A) == b"`aa"
    assert disk.crash("kept").content(A) == b"cbb"


def test_a_replaced_content_is_durable_under_a_durable_name() -> None:
    disk = new_disk()
    file = disk.open(A, create=True)
    file.write_at(0, [b"unsynced"])
    disk.replace(A, b"replaced")
    disk.replace(B, b"new")
    assert file.read_at(0, 100) == b"replaced"
    after = disk.crash("lost")
    assert after.content(A) == b"replaced"
    assert after.content(B) == b"new"


def test_a_map_is_a_snapshot() -> None:
    file = new_file(new_disk(), b"abc")
    view = file.map()
    file.write_at(0, [b"xyz"])
    assert bytes(view) == b"abc"
    assert bytes(file.map()) == b"xyz"


def test_truncating_a_mapped_file_fails_an_assertion_until_the_process_ends() -> None:
    disk = new_disk()
    file = new_file(disk, b"abc")
    disk.open(A).map()
    with pytest.raises(AssertionError, match="replaced, never truncated"):
        file.truncate(1)
    assert file.read_at(0, 3) == b"abc"
    disk.crash("kept").open(A, write=True).truncate(1)


def test_threads_share_the_disk() -> None:
    disk = new_disk()
    file = disk.open(A, create=True)
    start = disk.operations

    def write(number: int) -> None:
        for step in range(100):
            file.write_at((step * 8 + number) * 100, [bytes([number + 1]) * 100])
            assert file.read_at((step * 8 + number) * 100, 100) == bytes([number + 1]) * 100
            if step % 10 == 0:
                file.sync()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.sync()
    disk.sync_folder(FOLDER)
    assert disk.operations - start == 8 * 110 + 2
    assert disk.crash("lost").content(A) == b"".join(bytes([number + 1]) * 100 for number in range(8)) * 100
