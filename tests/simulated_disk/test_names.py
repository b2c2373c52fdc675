"""Names: creations, renames and removals are durable only after their folder was synced."""

from __future__ import annotations

import pytest

from eventstore.errors import FolderRefused
from tests.simulated_disk import CRASH_MODES, SimulatedDisk
from tests.simulated_disk.scenarios import FOLDER, SEEDS, A, B, new_disk, new_file, outcomes


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
