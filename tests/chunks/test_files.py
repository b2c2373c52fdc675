"""The contract of `Files`: the same checks on the operating system and on the simulated disk.

The last test runs arbitrary programs on both and compares every answer, so that a result on the simulated disk is valid for a
real one.
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
class Workspace:
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


def simulated(seed: int = 0) -> Workspace:
    disk = SimulatedDisk(seed)
    disk.make_folder(Path("/data"))
    return Workspace(disk, Path("/data"))


@pytest.fixture(params=["operating system", "simulated disk"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    return Workspace(OsFiles(), tmp_path) if request.param == "operating system" else simulated()


def test_only_zeros_are_before_what_may_have_been_written(workspace: Workspace) -> None:
    size, second = 8 * 1024 * 1024, 5 * 1024 * 1024
    file = workspace.create("a", b"hello")
    file.preallocate(size)
    file.write_at(second, [b"world"])
    for offset in (0, 4, 5, 4096, second - 1, second, second + 4, second + 5, size - 1, size):
        found, at = file.written_parts(offset), offset
        for begin, end in [*found, (size, size)]:
            assert at <= begin <= end <= size
            assert not any(file.read_at(at, begin - at))
            at = end


def test_written_bytes_are_read_back(workspace: Workspace) -> None:
    file = workspace.create("a", b"hello")
    file.write_at(5, [b", ", b"", b"world"])
    assert file.read_at(0, 12) == b"hello, world"
    assert file.read_at(7, 3) == b"wor"
    assert file.size() == 12


def test_a_read_is_short_only_at_the_end_of_the_file(workspace: Workspace) -> None:
    file = workspace.create("a", bytes(range(256)) * 40)
    assert len(file.read_at(0, 10_240)) == 10_240
    assert file.read_at(10_236, 100) == bytes([252, 253, 254, 255])
    assert file.read_at(10_240, 1) == b""
    assert file.read_at(1 << 40, 1) == b""
    assert file.read_at(3, 0) == b""


def test_one_write_accepts_more_buffers_than_the_kernel(workspace: Workspace) -> None:
    buffers = [bytes([number % 251]) * (number % 7) for number in range(3_000)]
    file = workspace.create("a", b"....")
    file.write_at(4, buffers)
    assert file.read_at(4, 20_000) == b"".join(buffers)


def test_writing_no_bytes_changes_nothing(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    file.write_at(100, [])
    file.write_at(100, [b"", b""])
    assert file.size() == 3


def test_an_overwrite_leaves_its_neighbours(workspace: Workspace) -> None:
    file = workspace.create("a", b"." * 2_000)
    file.write_at(700, [b"x" * 600])
    assert file.read_at(0, 2_000) == b"." * 700 + b"x" * 600 + b"." * 700


def test_a_write_beyond_the_end_fills_the_gap_with_zeros(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    file.write_at(1_000, [b"z"])
    assert file.read_at(0, 2_000) == b"abc" + bytes(997) + b"z"


def test_two_handles_of_a_file_see_the_same_content(workspace: Workspace) -> None:
    writer = workspace.create("a", b"old")
    reader = workspace.files.open(workspace.folder / "a")
    writer.write_at(0, [b"new"])
    assert reader.read_at(0, 3) == b"new"


def test_sync_does_not_change_what_is_read(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    file.sync()
    file.sync()
    assert file.read_at(0, 10) == b"abc"


def test_negative_offsets_are_refused(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    refused: list[Callable[[], object]] = [
        lambda: file.read_at(-5, 1),
        lambda: file.write_at(-5, [b"x"]),  # not -1, which pwritev reads as the position of the descriptor
        lambda: file.truncate(-5),
    ]
    for call in refused:
        with pytest.raises(OSError):
            call()
    assert file.read_at(0, 10) == b"abc"


def test_a_file_opened_for_reading_refuses_changes(workspace: Workspace) -> None:
    workspace.create("a", b"abc").close()
    file = workspace.files.open(workspace.folder / "a")
    refused: list[Callable[[], object]] = [
        lambda: file.write_at(0, [b"x"]),
        lambda: file.truncate(0),
        lambda: file.preallocate(100),
    ]
    for call in refused:
        with pytest.raises(OSError):
            call()
    assert file.read_at(0, 10) == b"abc"


def test_a_closed_file_refuses_everything_except_close(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
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


def test_creating_a_file_that_exists_is_refused_and_leaves_it(workspace: Workspace) -> None:
    workspace.create("a", b"abc").close()
    workspace.files.make_folder(workspace.folder / "folder")
    for name in ("a", "folder"):
        with pytest.raises(FileExistsError):
            workspace.files.open(workspace.folder / name, create=True, write=True)
    assert workspace.read("a") == b"abc"


def test_opening_a_missing_file_is_refused(workspace: Workspace) -> None:
    for write in (False, True):
        with pytest.raises(FileNotFoundError):
            workspace.files.open(workspace.folder / "a", write=write)
    with pytest.raises(FileNotFoundError):
        workspace.files.open(workspace.folder / "missing" / "a", create=True)


def test_a_file_is_not_a_folder(workspace: Workspace) -> None:
    workspace.create("a").close()
    below = workspace.folder / "a" / "b"
    refused: list[Callable[[], object]] = [
        lambda: workspace.files.names(workspace.folder / "a"),
        lambda: workspace.files.sync_folder(workspace.folder / "a"),
        lambda: workspace.files.open(below),
        lambda: workspace.files.open(below, create=True),
        lambda: workspace.files.make_folder(below),
        lambda: workspace.files.rename(workspace.folder / "a", below),
        lambda: workspace.files.remove(below),
    ]
    for call in refused:
        with pytest.raises(NotADirectoryError):
            call()
    assert not workspace.files.exists(below)


def test_a_folder_is_not_a_file(workspace: Workspace) -> None:
    workspace.create("a").close()
    workspace.files.make_folder(workspace.folder / "folder")
    refused: list[Callable[[], object]] = [
        lambda: workspace.files.open(workspace.folder / "folder", write=True),
        lambda: workspace.files.remove(workspace.folder / "folder"),
        lambda: workspace.files.rename(workspace.folder / "a", workspace.folder / "folder"),
    ]
    for call in refused:
        with pytest.raises(IsADirectoryError):
            call()
    with pytest.raises(OSError):
        workspace.files.rename(workspace.folder / "a", workspace.folder)
    assert workspace.files.names(workspace.folder) == ["a", "folder"]


def test_names_are_sorted_and_include_folders(workspace: Workspace) -> None:
    for name in ("b", "a", "B", "ä"):
        workspace.create(name).close()
    workspace.files.make_folder(workspace.folder / "aa" / "deeper")
    assert workspace.files.names(workspace.folder) == ["B", "a", "aa", "b", "ä"]
    assert workspace.files.names(workspace.folder / "aa") == ["deeper"]


def test_names_of_a_missing_folder_are_refused(workspace: Workspace) -> None:
    for call in (workspace.files.names, workspace.files.sync_folder):
        with pytest.raises(FileNotFoundError):
            call(workspace.folder / "missing")


def test_exists_knows_files_and_folders(workspace: Workspace) -> None:
    workspace.create("a").close()
    assert workspace.files.exists(workspace.folder)
    assert workspace.files.exists(workspace.folder / "a")
    assert not workspace.files.exists(workspace.folder / "b")
    assert not workspace.files.exists(workspace.folder / "missing" / "b")


def test_all_spellings_of_a_path_mean_the_same(workspace: Workspace) -> None:
    workspace.create("a", b"abc").close()
    relative = Path(os.path.relpath(workspace.folder))
    assert workspace.files.names(relative) == ["a"]
    assert workspace.files.exists(relative / "." / "a")


def test_make_folder_creates_the_parents_and_keeps_existing_files(workspace: Workspace) -> None:
    path = workspace.folder / "one" / "two" / "three"
    workspace.files.make_folder(path)
    workspace.files.open(path / "a", create=True).close()
    workspace.files.make_folder(path)
    workspace.files.make_folder(path.parent)
    assert workspace.files.names(path) == ["a"]


def test_rename_replaces_the_target(workspace: Workspace) -> None:
    workspace.create("old", b"old").close()
    workspace.create("new", b"new").close()
    workspace.files.rename(workspace.folder / "new", workspace.folder / "old")
    workspace.files.sync_folder(workspace.folder)
    assert workspace.files.names(workspace.folder) == ["old"]
    assert workspace.read("old") == b"new"


def test_rename_reaches_into_another_folder(workspace: Workspace) -> None:
    workspace.create("a", b"abc").close()
    workspace.files.make_folder(workspace.folder / "other")
    workspace.files.rename(workspace.folder / "a", workspace.folder / "other" / "b")
    assert workspace.files.names(workspace.folder) == ["other"]
    assert workspace.read("other/b") == b"abc"


def test_rename_to_itself_changes_nothing(workspace: Workspace) -> None:
    workspace.create("a", b"abc").close()
    workspace.files.rename(workspace.folder / "a", workspace.folder / "a")
    assert workspace.read("a") == b"abc"


def test_renaming_or_removing_a_missing_file_is_refused(workspace: Workspace) -> None:
    workspace.create("a", b"abc").close()
    with pytest.raises(FileNotFoundError):
        workspace.files.rename(workspace.folder / "b", workspace.folder / "a")
    with pytest.raises(FileNotFoundError):
        workspace.files.rename(workspace.folder / "a", workspace.folder / "missing" / "a")
    with pytest.raises(FileNotFoundError):
        workspace.files.remove(workspace.folder / "b")
    assert workspace.read("a") == b"abc"


def test_an_open_file_outlives_its_name(workspace: Workspace) -> None:
    replaced = workspace.create("a", b"replaced")
    workspace.create("b", b"b").close()
    workspace.files.rename(workspace.folder / "b", workspace.folder / "a")
    removed = workspace.create("c", b"removed")
    workspace.files.remove(workspace.folder / "c")
    removed.write_at(7, [b"!"])
    assert workspace.files.names(workspace.folder) == ["a"]
    assert replaced.read_at(0, 100) == b"replaced"
    assert removed.read_at(0, 100) == b"removed!"


def test_a_held_lock_is_refused_to_a_second_holder(workspace: Workspace) -> None:
    path = workspace.folder / "lock"
    lock = workspace.files.lock(path)
    with pytest.raises(FolderRefused, match=f"in use by process {os.getpid()};") as refusal:
        workspace.files.lock(path)
    assert refusal.value.path == str(workspace.folder)
    lock.release()


def test_a_released_lock_is_free_and_may_be_released_again(workspace: Workspace) -> None:
    path = workspace.folder / "lock"
    first = workspace.files.lock(path)
    first.release()
    second = workspace.files.lock(path)
    first.release()
    with pytest.raises(FolderRefused):
        workspace.files.lock(path)
    second.release()


def test_a_lock_is_a_file_that_names_its_holder(workspace: Workspace) -> None:
    workspace.create("lock", b"something longer than a process id").close()
    for _ in range(2):
        workspace.files.lock(workspace.folder / "lock").release()
    assert workspace.files.names(workspace.folder) == ["lock"]
    assert workspace.read("lock") == f"{os.getpid()}\n".encode()


def test_a_lock_in_a_missing_folder_is_refused(workspace: Workspace) -> None:
    with pytest.raises(FileNotFoundError):
        workspace.files.lock(workspace.folder / "missing" / "lock")


def test_map_is_the_whole_file_and_read_only(workspace: Workspace) -> None:
    content = bytes(range(256)) * 40
    view = workspace.create("a", content).map()
    assert view == content
    assert view.readonly


def test_map_of_an_empty_file_is_empty(workspace: Workspace) -> None:
    assert len(workspace.create("a").map()) == 0


def test_a_map_outlives_the_handle_and_the_name(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    view = file.map()
    file.close()
    workspace.create("b", b"replacement").close()
    workspace.files.rename(workspace.folder / "b", workspace.folder / "a")
    assert bytes(view) == b"abc"


def test_preallocate_extends_with_zeros(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    file.preallocate(100_000)
    assert file.size() == 100_000
    assert file.read_at(0, 100_000) == b"abc" + bytes(99_997)


def test_preallocate_to_less_than_the_size_changes_nothing(workspace: Workspace) -> None:
    file = workspace.create("a", b"abc")
    for size in (2, 0, 3):
        file.preallocate(size)
    assert file.read_at(0, 10) == b"abc"


def test_truncate_cuts_the_end(workspace: Workspace) -> None:
    file = workspace.create("a", b"x" * 3_000)
    file.truncate(1_000)
    assert file.size() == 1_000
    assert file.read_at(0, 5_000) == b"x" * 1_000


def test_cut_bytes_do_not_reappear_when_the_file_grows(workspace: Workspace) -> None:
    file = workspace.create("a", b"x" * 3_000)
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


def perform(workspace: Workspace, handles: dict[str, File], step: tuple[object, ...]) -> object:
    """Runs a step and returns its answer or the class of its error: both implementations must agree on it."""
    files, path = workspace.files, workspace.folder / str(step[1])
    handle = handles.get(str(step[1]))
    try:
        match step:
            case ("create", str(name)):
                handles[name] = files.open(path, create=True)
            case ("open", str(name)):
                handles[name] = files.open(path, write=True)
            case ("rename", _, str(target)) if path != workspace.folder / "sub":
                files.rename(path, workspace.folder / target)
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
        files.names(workspace.folder),
        files.names(workspace.folder / "sub"),
        [(name, file.size(), file.read_at(0, 10_000)) for name, file in handles.items()],
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_any_program_gets_the_same_answers_from_both(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, simulation = Workspace(OsFiles(), Path(folder)), simulated()
        real_handles: dict[str, File] = {}
        simulated_handles: dict[str, File] = {}
        for workspace in (real, simulation):
            workspace.files.make_folder(workspace.folder / "sub")
        try:
            for step in steps:
                assert perform(real, real_handles, step) == perform(simulation, simulated_handles, step), step
        finally:
            for file in real_handles.values():
                file.close()
