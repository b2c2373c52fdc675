"""What the simulated disk forgets, keeps and refuses.

If it were kinder than a real one, the crash tests of the store would prove nothing. A test that says "may" runs over
many seeds and looks at the set of all outcomes: each must be allowed, and each that is allowed must occur.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.chunks.files import Files
from eventstore.errors import FolderRefused
from tests.simulated_disk import CRASH_MODES, SECTOR_BYTES, CrashMode, SimulatedCrash, SimulatedDisk, SimulatedFile

FOLDER = Path("/data")
A = FOLDER / "a"
B = FOLDER / "b"
SEEDS = range(60)


def new_disk(seed: int = 0, *, capacity_bytes: int | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(seed, capacity_bytes=capacity_bytes)
    disk.make_folder(FOLDER)
    return disk


def new_file(disk: SimulatedDisk, content: bytes = b"", path: Path = A) -> SimulatedFile:
    """A file with a durable content under a durable name."""
    disk.replace(path, content)
    return disk.open(path, write=True)


def outcomes(prepare: Callable[[SimulatedDisk], object], mode: CrashMode = "sectors") -> list[SimulatedDisk]:
    """What a crash after the same steps leaves, for many seeds."""
    left = []
    for seed in SEEDS:
        disk = new_disk(seed)
        prepare(disk)
        left.append(disk.crash(mode))
    return left


# Data


def test_what_was_not_synced_is_lost_with_the_power_and_closing_does_not_sync() -> None:
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


def test_a_killed_process_leaves_everything_it_wrote() -> None:
    disk = new_disk()
    file = disk.open(A, create=True)
    file.write_at(0, [b"abc"])
    disk.rename(A, B)
    after = disk.crash("kept")
    assert after.names(FOLDER) == ["b"]
    assert after.content(B) == b"abc"


def test_what_a_killed_process_left_unsynced_is_still_unsynced() -> None:
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


def test_no_version_from_before_a_sync_comes_back() -> None:
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
def test_every_surviving_sector_and_size_was_once_there(seed: int, steps: list[tuple[object, ...]]) -> None:
    disk = new_disk(seed)
    file = new_file(disk)
    versions = [b""]  # the contents since the last sync, that one first: the plain model of the disk
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


# Names


def test_a_file_whose_name_was_never_synced_vanishes_though_its_data_was() -> None:
    disk = new_disk()
    file = disk.open(A, create=True)
    file.write_at(0, [b"abc"])
    file.sync()
    assert disk.durable_names(FOLDER) == []
    assert disk.crash("lost").names(FOLDER) == []

    disk = disk.crash("kept")
    disk.sync_folder(FOLDER)
    assert disk.durable_names(FOLDER) == ["a"]
    assert disk.crash("lost").content(A) == b"abc"


def test_a_durable_name_does_not_make_the_data_durable() -> None:
    disk = new_disk()
    disk.open(A, create=True).write_at(0, [b"abc"])
    disk.sync_folder(FOLDER)
    assert disk.crash("lost").content(A) == b""


def test_an_unsynced_rename_may_be_lost_but_is_never_half_done() -> None:
    def rename(disk: SimulatedDisk) -> None:
        new_file(disk, b"old", A)
        new_file(disk, b"new", B)
        disk.rename(B, A)

    left = {tuple((name, after.content(FOLDER / name)) for name in after.names(FOLDER)) for after in outcomes(rename)}
    assert left == {(("a", b"old"), ("b", b"new")), (("a", b"new"),)}


def test_a_rename_between_folders_is_never_half_done() -> None:
    def rename(disk: SimulatedDisk) -> None:
        disk.make_folder(FOLDER / "sub")
        new_file(disk, b"abc")
        disk.rename(A, FOLDER / "sub" / "a")

    left = {(*after.names(FOLDER), *after.names(FOLDER / "sub")) for after in outcomes(rename)}
    assert left == {("a", "sub"), ("sub", "a")}


def test_syncing_either_folder_makes_a_rename_between_them_durable() -> None:
    for synced in (FOLDER, FOLDER / "sub"):
        disk = new_disk()
        disk.make_folder(FOLDER / "sub")
        disk.open(A, create=True)
        disk.open(B, create=True)
        disk.rename(A, FOLDER / "sub" / "a")
        disk.sync_folder(synced)
        after = disk.crash("lost")
        assert after.names(FOLDER) == ["b", "sub"], "the rename rests on what happened in its folder before"
        assert after.names(FOLDER / "sub") == ["a"]


def test_an_unsynced_removal_may_be_undone() -> None:
    def remove(disk: SimulatedDisk) -> None:
        new_file(disk, b"abc")
        disk.remove(A)

    assert {after.exists(A) for after in outcomes(remove)} == {False, True}
    assert all(after.content(A) == b"abc" for after in outcomes(remove, "lost"))


def test_of_the_unsynced_changes_of_a_folder_the_first_few_survive() -> None:
    def create_four(disk: SimulatedDisk) -> None:
        for name in ("a", "b", "c", "d"):
            disk.open(FOLDER / name, create=True)

    left = {"".join(after.names(FOLDER)) for after in outcomes(create_four)}
    assert left == {"", "a", "ab", "abc", "abcd"}


def test_no_change_survives_a_rename_to_another_folder_that_came_before_it_and_did_not() -> None:
    def rename_then_create(disk: SimulatedDisk) -> None:
        disk.make_folder(FOLDER / "sub")
        new_file(disk, b"abc")
        disk.rename(A, FOLDER / "sub" / "a")
        disk.open(B, create=True)
        disk.open(FOLDER / "sub" / "b", create=True)

    left = {(*after.names(FOLDER), *after.names(FOLDER / "sub")) for after in outcomes(rename_then_create)}
    assert left == {
        ("a", "sub"),
        ("sub", "a"),
        ("b", "sub", "a"),
        ("sub", "a", "b"),
        ("b", "sub", "a", "b"),
    }


def test_a_folder_is_synced_alone() -> None:
    disk = new_disk()
    disk.make_folder(FOLDER / "sub")
    disk.open(A, create=True)
    disk.open(B, create=True)
    disk.open(FOLDER / "sub" / "c", create=True)
    disk.sync_folder(FOLDER / "sub")
    assert disk.durable_names(FOLDER) == ["sub"]
    assert disk.durable_names(FOLDER / "sub") == ["c"]
    left = {tuple(disk.crash("sectors").names(FOLDER)) for _ in SEEDS}
    assert left == {("sub",), ("a", "sub"), ("a", "b", "sub")}, "the other folder keeps its order"


def test_a_made_folder_is_durable() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(FOLDER / "sub" / "deeper")
    after = disk.crash("lost")
    assert after.names(FOLDER) == ["sub"]
    assert after.names(FOLDER / "sub") == ["deeper"]


def test_a_crash_releases_the_lock() -> None:
    for mode in CRASH_MODES:
        disk = new_disk()
        lock = disk.lock(FOLDER / "lock")
        with pytest.raises(FolderRefused):
            disk.lock(FOLDER / "lock")
        disk.crash(mode).lock(FOLDER / "lock")
        lock.release()


# Crashes


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
def test_whoever_looks_at_each_operation_is_shown_what_a_crash_there_would_leave(mode: CrashMode) -> None:
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


def test_operations_counts_what_changes_the_disk_and_nothing_else() -> None:
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
def test_a_forgotten_sync_is_found_out(forgotten: str) -> None:
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


def test_the_trace_tells_the_seed_the_operations_the_faults_and_the_crash() -> None:
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


# Faults


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


def test_after_a_failed_sync_the_data_may_be_on_the_disk_all_the_same() -> None:
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
    assert disk.crash("lost").content(A)[1_024:] == bytes(3_000 - 1_024), "what was cut never comes back"


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


# Space


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


def test_a_write_to_a_full_disk_never_takes_more_than_there_is() -> None:
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


# The medium


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


def test_truncating_a_mapped_file_is_a_mistake_of_ours_until_the_process_is_gone() -> None:
    disk = new_disk()
    file = new_file(disk, b"abc")
    disk.open(A).map()
    with pytest.raises(AssertionError, match="replaced, never truncated"):
        file.truncate(1)
    assert file.read_at(0, 3) == b"abc"
    disk.crash("kept").open(A, write=True).truncate(1)


# Threads


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
