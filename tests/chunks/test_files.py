"""What every implementation of `Files` promises: the same checks on the operating system and on the simulated disk.

The last test runs arbitrary programs on both and compares every answer, so that what holds on the simulated disk holds
on a real one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.chunks.files import File, Files, OsFiles
from eventstore.errors import FolderRefused
from tests.simulated_disk import SimulatedDisk


@dataclass(frozen=True, slots=True)
class Ground:
    """An implementation and an empty folder on it."""

    files: Files
    folder: Path

    def create(self, name: str, content: bytes = b"") -> File:
        file = self.files.open(self.folder / name, create=True)
        file.write_at(0, [content])
        return file

    def read(self, name: str) -> bytes:
        file = self.files.open(self.folder / name)
        with contextlib.closing(file):
            return file.read_at(0, file.size())


def simulated(seed: int = 0) -> Ground:
    disk = SimulatedDisk(seed)
    disk.make_folder(Path("/data"))
    return Ground(disk, Path("/data"))


@pytest.fixture(params=["operating system", "simulated disk"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(OsFiles(), tmp_path) if request.param == "operating system" else simulated()


def test_what_was_written_is_read(ground: Ground) -> None:
    file = ground.create("a", b"hello")
    file.write_at(5, [b", ", b"", b"world"])
    assert file.read_at(0, 12) == b"hello, world"
    assert file.read_at(7, 3) == b"wor"
    assert file.size() == 12


def test_a_read_is_short_only_at_the_end_of_the_file(ground: Ground) -> None:
    file = ground.create("a", bytes(range(256)) * 40)
    assert len(file.read_at(0, 10_240)) == 10_240
    assert file.read_at(10_236, 100) == bytes([252, 253, 254, 255])
    assert file.read_at(10_240, 1) == b""
    assert file.read_at(1 << 40, 1) == b""
    assert file.read_at(3, 0) == b""


def test_one_write_takes_more_buffers_than_the_kernel_does(ground: Ground) -> None:
    buffers = [bytes([number % 251]) * (number % 7) for number in range(3_000)]
    file = ground.create("a", b"....")
    file.write_at(4, buffers)
    assert file.read_at(4, 20_000) == b"".join(buffers)


def test_writing_no_bytes_changes_nothing(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    file.write_at(100, [])
    file.write_at(100, [b"", b""])
    assert file.size() == 3


def test_an_overwrite_leaves_its_neighbours(ground: Ground) -> None:
    file = ground.create("a", b"." * 2_000)
    file.write_at(700, [b"x" * 600])
    assert file.read_at(0, 2_000) == b"." * 700 + b"x" * 600 + b"." * 700


def test_a_write_beyond_the_end_fills_the_gap_with_zeros(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    file.write_at(1_000, [b"z"])
    assert file.read_at(0, 2_000) == b"abc" + bytes(997) + b"z"


def test_two_handles_of_a_file_see_the_same_content(ground: Ground) -> None:
    writer = ground.create("a", b"old")
    reader = ground.files.open(ground.folder / "a")
    writer.write_at(0, [b"new"])
    assert reader.read_at(0, 3) == b"new"


def test_sync_leaves_what_is_read_as_it_is(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    file.sync()
    file.sync()
    assert file.read_at(0, 10) == b"abc"


def test_negative_offsets_are_refused(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    refused: list[Callable[[], object]] = [
        lambda: file.read_at(-5, 1),
        lambda: file.write_at(-5, [b"x"]),  # not -1, which pwritev takes for "at the position of the descriptor"
        lambda: file.truncate(-5),
    ]
    for call in refused:
        with pytest.raises(OSError):
            call()
    assert file.read_at(0, 10) == b"abc"


def test_a_file_opened_for_reading_refuses_changes(ground: Ground) -> None:
    ground.create("a", b"abc").close()
    file = ground.files.open(ground.folder / "a")
    refused: list[Callable[[], object]] = [
        lambda: file.write_at(0, [b"x"]),
        lambda: file.truncate(0),
        lambda: file.preallocate(100),
    ]
    for call in refused:
        with pytest.raises(OSError):
            call()
    assert file.read_at(0, 10) == b"abc"


def test_a_closed_file_refuses_everything_but_being_closed_again(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    file.close()
    file.close()
    refused: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        file.map,
    ]
    for call in refused:
        with pytest.raises((OSError, ValueError)):  # Python's own check of the descriptor is a ValueError
            call()


def test_creating_a_file_that_exists_is_refused_and_leaves_it(ground: Ground) -> None:
    ground.create("a", b"abc").close()
    ground.files.make_folder(ground.folder / "folder")
    for name in ("a", "folder"):
        with pytest.raises(FileExistsError):
            ground.files.open(ground.folder / name, create=True, write=True)
    assert ground.read("a") == b"abc"


def test_opening_a_missing_file_is_refused(ground: Ground) -> None:
    for write in (False, True):
        with pytest.raises(FileNotFoundError):
            ground.files.open(ground.folder / "a", write=write)
    with pytest.raises(FileNotFoundError):
        ground.files.open(ground.folder / "missing" / "a", create=True)


def test_a_file_is_no_folder(ground: Ground) -> None:
    ground.create("a").close()
    below = ground.folder / "a" / "b"
    refused: list[Callable[[], object]] = [
        lambda: ground.files.names(ground.folder / "a"),
        lambda: ground.files.sync_folder(ground.folder / "a"),
        lambda: ground.files.open(below),
        lambda: ground.files.open(below, create=True),
        lambda: ground.files.make_folder(below),
        lambda: ground.files.rename(ground.folder / "a", below),
        lambda: ground.files.remove(below),
    ]
    for call in refused:
        with pytest.raises(NotADirectoryError):
            call()
    assert not ground.files.exists(below)


def test_a_folder_is_no_file(ground: Ground) -> None:
    ground.create("a").close()
    ground.files.make_folder(ground.folder / "folder")
    refused: list[Callable[[], object]] = [
        lambda: ground.files.open(ground.folder / "folder", write=True),
        lambda: ground.files.remove(ground.folder / "folder"),
        lambda: ground.files.rename(ground.folder / "a", ground.folder / "folder"),
    ]
    for call in refused:
        with pytest.raises(IsADirectoryError):
            call()
    with pytest.raises(OSError):
        ground.files.rename(ground.folder / "a", ground.folder)
    assert ground.files.names(ground.folder) == ["a", "folder"]


def test_names_are_sorted_and_include_folders(ground: Ground) -> None:
    for name in ("b", "a", "B", "ä"):
        ground.create(name).close()
    ground.files.make_folder(ground.folder / "aa" / "deeper")
    assert ground.files.names(ground.folder) == ["B", "a", "aa", "b", "ä"]
    assert ground.files.names(ground.folder / "aa") == ["deeper"]


def test_names_of_a_missing_folder_are_refused(ground: Ground) -> None:
    for call in (ground.files.names, ground.files.sync_folder):
        with pytest.raises(FileNotFoundError):
            call(ground.folder / "missing")


def test_exists_knows_files_and_folders(ground: Ground) -> None:
    ground.create("a").close()
    assert ground.files.exists(ground.folder)
    assert ground.files.exists(ground.folder / "a")
    assert not ground.files.exists(ground.folder / "b")
    assert not ground.files.exists(ground.folder / "missing" / "b")


def test_a_path_means_the_same_however_it_is_written(ground: Ground) -> None:
    ground.create("a", b"abc").close()
    relative = Path(os.path.relpath(ground.folder))
    assert ground.files.names(relative) == ["a"]
    assert ground.files.exists(relative / "." / "a")


def test_make_folder_makes_the_parents_and_leaves_what_is_there(ground: Ground) -> None:
    path = ground.folder / "one" / "two" / "three"
    ground.files.make_folder(path)
    ground.files.open(path / "a", create=True).close()
    ground.files.make_folder(path)
    ground.files.make_folder(path.parent)
    assert ground.files.names(path) == ["a"]


def test_rename_replaces_the_target(ground: Ground) -> None:
    ground.create("old", b"old").close()
    ground.create("new", b"new").close()
    ground.files.rename(ground.folder / "new", ground.folder / "old")
    ground.files.sync_folder(ground.folder)
    assert ground.files.names(ground.folder) == ["old"]
    assert ground.read("old") == b"new"


def test_rename_reaches_into_another_folder(ground: Ground) -> None:
    ground.create("a", b"abc").close()
    ground.files.make_folder(ground.folder / "other")
    ground.files.rename(ground.folder / "a", ground.folder / "other" / "b")
    assert ground.files.names(ground.folder) == ["other"]
    assert ground.read("other/b") == b"abc"


def test_rename_to_itself_changes_nothing(ground: Ground) -> None:
    ground.create("a", b"abc").close()
    ground.files.rename(ground.folder / "a", ground.folder / "a")
    assert ground.read("a") == b"abc"


def test_renaming_or_removing_a_missing_file_is_refused(ground: Ground) -> None:
    ground.create("a", b"abc").close()
    with pytest.raises(FileNotFoundError):
        ground.files.rename(ground.folder / "b", ground.folder / "a")
    with pytest.raises(FileNotFoundError):
        ground.files.rename(ground.folder / "a", ground.folder / "missing" / "a")
    with pytest.raises(FileNotFoundError):
        ground.files.remove(ground.folder / "b")
    assert ground.read("a") == b"abc"


def test_an_open_file_outlives_its_name(ground: Ground) -> None:
    replaced = ground.create("a", b"replaced")
    ground.create("b", b"b").close()
    ground.files.rename(ground.folder / "b", ground.folder / "a")
    removed = ground.create("c", b"removed")
    ground.files.remove(ground.folder / "c")
    removed.write_at(7, [b"!"])
    assert ground.files.names(ground.folder) == ["a"]
    assert replaced.read_at(0, 100) == b"replaced"
    assert removed.read_at(0, 100) == b"removed!"


def test_a_held_lock_is_refused_to_a_second_holder(ground: Ground) -> None:
    path = ground.folder / "lock"
    lock = ground.files.lock(path)
    with pytest.raises(FolderRefused, match=f"in use by process {os.getpid()};") as refusal:
        ground.files.lock(path)
    assert refusal.value.path == str(ground.folder)
    lock.release()


def test_a_released_lock_is_free_and_may_be_released_again(ground: Ground) -> None:
    path = ground.folder / "lock"
    first = ground.files.lock(path)
    first.release()
    second = ground.files.lock(path)
    first.release()
    with pytest.raises(FolderRefused):
        ground.files.lock(path)
    second.release()


def test_a_lock_is_a_file_that_names_its_holder(ground: Ground) -> None:
    ground.create("lock", b"something longer than a process id").close()
    for _ in range(2):
        ground.files.lock(ground.folder / "lock").release()
    assert ground.files.names(ground.folder) == ["lock"]
    assert ground.read("lock") == f"{os.getpid()}\n".encode()


def test_a_lock_in_a_missing_folder_is_refused(ground: Ground) -> None:
    with pytest.raises(FileNotFoundError):
        ground.files.lock(ground.folder / "missing" / "lock")


def test_map_is_the_whole_file_and_read_only(ground: Ground) -> None:
    content = bytes(range(256)) * 40
    view = ground.create("a", content).map()
    assert view == content
    assert view.readonly


def test_map_of_an_empty_file_is_empty(ground: Ground) -> None:
    assert len(ground.create("a").map()) == 0


def test_a_map_outlives_the_handle_and_the_name(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    view = file.map()
    file.close()
    ground.create("b", b"replacement").close()
    ground.files.rename(ground.folder / "b", ground.folder / "a")
    assert bytes(view) == b"abc"


def test_preallocate_extends_with_zeros(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    file.preallocate(100_000)
    assert file.size() == 100_000
    assert file.read_at(0, 100_000) == b"abc" + bytes(99_997)


def test_preallocate_to_less_than_the_size_changes_nothing(ground: Ground) -> None:
    file = ground.create("a", b"abc")
    for size in (2, 0, 3):
        file.preallocate(size)
    assert file.read_at(0, 10) == b"abc"


def test_truncate_cuts_the_end(ground: Ground) -> None:
    file = ground.create("a", b"x" * 3_000)
    file.truncate(1_000)
    assert file.size() == 1_000
    assert file.read_at(0, 5_000) == b"x" * 1_000


def test_what_was_cut_does_not_come_back_when_the_file_grows(ground: Ground) -> None:
    file = ground.create("a", b"x" * 3_000)
    file.truncate(1_000)
    file.truncate(2_000)
    file.preallocate(4_000)
    file.write_at(5_000, [b"y"])
    assert file.read_at(0, 9_000) == b"x" * 1_000 + bytes(4_000) + b"y"


NAMES = st.sampled_from(["a", "b", "sub/a", "sub", "missing/a"])
SIZES = st.integers(0, 3_000)
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("open"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("write"), NAMES, SIZES, st.binary(max_size=1_500)),
    st.tuples(st.just("truncate"), NAMES, SIZES),
    st.tuples(st.just("preallocate"), NAMES, SIZES),
    st.tuples(st.just("sync"), NAMES),
)


def perform(ground: Ground, handles: dict[str, File], step: tuple[object, ...]) -> object:
    """Runs a step; its answer, or the class of its error, is what the two implementations must agree on."""
    files, path = ground.files, ground.folder / str(step[1])
    handle = handles.get(str(step[1]))
    try:
        match step:
            case ("create", str(name)):
                handles[name] = files.open(path, create=True)
            case ("open", str(name)):
                handles[name] = files.open(path, write=True)
            case ("rename", _, str(target)) if path != ground.folder / "sub":
                files.rename(path, ground.folder / target)
            case ("remove", _):
                files.remove(path)
            case ("write", _, int(offset), bytes(data)) if handle is not None:
                handle.write_at(offset, [data, data])
            case ("truncate", _, int(size)) if handle is not None:
                handle.truncate(size)
            case ("preallocate", _, int(size)) if handle is not None:
                handle.preallocate(size)
            case ("sync", _) if handle is not None:
                handle.sync()
    except OSError as error:
        return type(error)
    return [
        files.names(ground.folder),
        files.names(ground.folder / "sub"),
        [(name, file.size(), file.read_at(0, 10_000)) for name, file in handles.items()],
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_any_program_gets_the_same_answers_from_both(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, simulation = Ground(OsFiles(), Path(folder)), simulated()
        real_handles: dict[str, File] = {}
        simulated_handles: dict[str, File] = {}
        for ground in (real, simulation):
            ground.files.make_folder(ground.folder / "sub")
        try:
            for step in steps:
                assert perform(real, real_handles, step) == perform(simulation, simulated_handles, step), step
        finally:
            for file in real_handles.values():
                file.close()
