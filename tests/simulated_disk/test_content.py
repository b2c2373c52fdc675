"""The content of a file: what is durable, and which unsynced sectors and sizes a crash may leave.

If the simulated disk were kinder than a real disk, the crash tests of the store would prove nothing. A test that says "may"
runs many seeds and checks the set of all outcomes: each outcome must be allowed, and each allowed outcome must occur.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated_disk import CRASH_MODES, SECTOR_BYTES, SimulatedDisk, SimulatedFile
from tests.simulated_disk.scenarios import FOLDER, A, B, new_disk, new_file, outcomes


def test_unsynced_data_is_lost_with_the_power_and_closing_does_not_sync() -> None:
    disk = new_disk()
    file = new_file(disk, b"old")
    file.write_at(0, [b"new and longer"])
    file.close()
    assert disk.content(A) == b"new and longer"
    assert disk.crash("lost").content(A) == b"old"


def test_a_sync_makes_data_and_size_durable_in_every_mode() -> None:
    for mode in CRASH_MODES:
        for seed in range(10):
            disk = new_disk(seed)
            file = new_file(disk, b"old")
            file.write_at(0, [b"x" * 5_000])
            file.truncate(4_000)
            file.preallocate(6_000)
            file.sync()
            assert disk.crash(mode).content(A) == b"x" * 4_000 + bytes(2_000)


def test_a_killed_process_leaves_all_its_writes() -> None:
    disk = new_disk()
    file = disk.open(A, create=True)
    file.write_at(0, [b"abc"])
    disk.rename(A, B)
    after = disk.crash("kept")
    assert after.names(FOLDER) == ["b"]
    assert after.content(B) == b"abc"


def test_unsynced_data_of_a_killed_process_is_still_unsynced() -> None:
    disk = new_disk()
    file = new_file(disk, b"old")
    file.write_at(0, [b"new and longer"])
    disk.rename(A, B)
    killed = disk.crash("kept")
    unplugged = killed.crash("lost")
    assert unplugged.names(FOLDER) == ["a"]
    assert unplugged.content(A) == b"old"

    killed = disk.crash("kept")
    killed.open(B, write=True).sync()
    killed.sync_folder(FOLDER)
    assert killed.crash("lost").content(B) == b"new and longer"


def test_any_subset_of_the_unsynced_sectors_may_survive() -> None:
    def overwrite(disk: SimulatedDisk) -> None:
        new_file(disk, b"o" * 4 * SECTOR_BYTES).write_at(0, [b"n" * 4 * SECTOR_BYTES])

    sectors_seen = set()
    for after in outcomes(overwrite):
        content = after.content(A)
        assert len(content) == 4 * SECTOR_BYTES
        sectors = [content[start : start + SECTOR_BYTES] for start in range(0, len(content), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors), "a sector is whole or not there"
        sectors_seen.add("".join(chr(sector[0]) for sector in sectors))
    assert {"oooo", "nnnn"} <= sectors_seen
    assert any("no" in seen for seen in sectors_seen)
    assert any("on" in seen for seen in sectors_seen)


def test_a_lost_sector_in_a_grown_file_reads_as_zeros() -> None:
    def append(disk: SimulatedDisk) -> None:
        new_file(disk, b"o" * 100).write_at(100, [b"n" * 10_000])

    expected = b"o" * 100 + b"n" * 10_000
    contents = [after.content(A) for after in outcomes(append)]
    for content in contents:
        assert content[:100] == b"o" * 100
        assert all(byte in (0, written) for byte, written in zip(content, expected, strict=False))
    assert any(0 in content for content in contents)


def test_the_size_after_growing_is_anything_between_the_durable_and_the_live_one() -> None:
    def append(disk: SimulatedDisk) -> None:
        file = new_file(disk, b"o" * 100)
        file.write_at(100, [b"n" * 1_000])
        file.write_at(1_100, [b"n" * 900])

    sizes = {len(after.content(A)) for after in outcomes(append)}
    assert {100, 2_000} <= sizes
    assert min(sizes) == 100
    assert max(sizes) == 2_000
    assert len(sizes) > 5


def test_an_unsynced_truncation_may_be_undone_but_is_never_half_done() -> None:
    content = bytes(range(256)) * 20
    left = {after.content(A) for after in outcomes(lambda disk: new_file(disk, content).truncate(1_024))}
    assert left == {content, content[:1_024]}


def test_an_unsynced_preallocation_may_be_undone_but_is_never_half_done() -> None:
    left = {after.content(A) for after in outcomes(lambda disk: new_file(disk, b"abc").preallocate(9_000))}
    assert left == {b"abc", b"abc".ljust(9_000, b"\0")}


def test_a_truncation_may_survive_without_the_write_that_followed() -> None:
    def empty_and_refill(disk: SimulatedDisk) -> None:
        file = new_file(disk, b"o" * 1_000)
        file.truncate(0)
        file.write_at(0, [b"n" * 600])

    sizes = {len(after.content(A)) for after in outcomes(empty_and_refill)}
    assert {0, 600, 1_000} <= sizes


def test_a_sector_that_was_written_twice_may_survive_in_its_first_version() -> None:
    def write_twice(disk: SimulatedDisk) -> None:
        file = new_file(disk, b"0")
        file.write_at(0, [b"1"])
        file.write_at(0, [b"2"])

    assert {after.content(A) for after in outcomes(write_twice)} == {b"0", b"1", b"2"}


def test_no_version_from_before_a_sync_reappears() -> None:
    def sync_between(disk: SimulatedDisk) -> None:
        file = new_file(disk, b"0")
        file.write_at(0, [b"1"])
        file.write_at(0, [b"2"])
        file.sync()
        file.write_at(0, [b"3"])

    assert {after.content(A) for after in outcomes(sync_between)} == {b"2", b"3"}


def test_a_crash_leaves_nothing_unsynced_but_after_a_kill() -> None:
    disk = new_disk()
    new_file(disk, b"old").write_at(0, [b"n" * 5_000])
    after = disk.crash("sectors")
    assert after.crash("lost").content(A) == after.content(A)


WRITES = st.tuples(st.just("write"), st.integers(0, 3_000), st.binary(min_size=1, max_size=1_200))
SIZES = st.integers(0, 3_000)
RESIZES = st.one_of(st.tuples(st.just("truncate"), SIZES), st.tuples(st.just("preallocate"), SIZES))
SYNCS = st.tuples(st.just("sync"))


def perform(file: SimulatedFile, step: Sequence[object]) -> None:
    match step:
        case ("write", int(offset), bytes(data)):
            file.write_at(offset, [data])
        case ("truncate", int(size)):
            file.truncate(size)
        case ("preallocate", int(size)):
            file.preallocate(size)
        case _:
            file.sync()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.one_of(WRITES, RESIZES, SYNCS), max_size=15))
def test_every_surviving_sector_and_size_existed_before(seed: int, steps: list[tuple[object, ...]]) -> None:
    disk = new_disk(seed)
    file = new_file(disk)
    versions = [b""]  # the contents since the last sync, starting with the synced one: a plain model of the disk
    for step in steps:
        perform(file, step)
        content = disk.content(A)
        versions = [content] if step == ("sync",) else [*versions, content]

    assert disk.crash("kept").content(A) == versions[-1]
    assert disk.crash("lost").content(A) == versions[0]
    for _ in range(5):
        after = disk.crash("sectors").content(A)
        sizes = [len(version) for version in versions]
        assert min(sizes) <= len(after) <= max(sizes)
        for start in range(0, len(after), SECTOR_BYTES):
            end = min(start + SECTOR_BYTES, len(after))
            allowed = {version[start:end].ljust(end - start, b"\0") for version in versions}
            assert after[start:end] in allowed
