from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.chunks.files import File, OsFiles
from eventstore.store.rebuild import rebuild
from eventstore.store.sorted.directory import Directory
from eventstore.store.verification import verify
from tests.cli.conftest import SMALL_FILES
from tests.cli.processes import Server, output, refused, run, start, wait_for

Serve = Callable[..., Server]


def _replayed(folder: Path) -> list[es.Event]:
    async def read() -> list[es.Event]:
        async with es.open_store(folder, SMALL_FILES) as store:
            return [event async for event in store.read_all()]

    return trio.run(read)


@pytest.mark.parametrize("kept", [0, 1], ids=["all", "all but the last index"])
def test_all_derived_files_are_built_from_the_event_files(folder: Path, kept: int) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "events").iterdir()}
    shutil.rmtree(folder / "directory")
    (folder / "recent.json").unlink()
    indexes = sorted((folder / "events").glob("*.index"))
    for path in indexes[: len(indexes) - kept]:
        path.unlink()
    assert "indexes written (0 files sorted), 90 aggregates in the directory" in output("rebuild", folder)
    after = {path.name: path.read_bytes() for path in (folder / "events").iterdir()}
    assert {name: len(content) for name, content in after.items()} == {name: len(content) for name, content in before.items()}
    if kept:  # with the last index goes the key of the hashes of command ids: new indexes have another one
        assert after == before
    verified = verify(folder)
    assert (verified.sound, verified.notes) == (True, [])


def test_damaged_derived_files_are_replaced(folder: Path) -> None:
    for path in [*(folder / "events").glob("*.index"), folder / "directory/data.mdb", folder / "recent.json"]:
        path.write_bytes(b"\xff" * 3000)
    output("rebuild", folder)
    assert verify(folder).sound


def test_completed_files_that_were_not_sorted_are_sorted(unsorted_folder: Path) -> None:
    rebuilt = rebuild(unsorted_folder)
    assert rebuilt.sorted_files == rebuilt.indexes >= 3
    verified = verify(unsorted_folder)
    assert (verified.sound, verified.sorted_files) == (True, rebuilt.sorted_files)
    events = _replayed(unsorted_folder)
    assert [event.sequence for event in events] == list(range(1, 1_801))


def test_the_preload_file_names_the_aggregates_changed_last(folder: Path) -> None:
    rebuild(folder)
    recent = json.loads((folder / "recent.json").read_text())
    events = _replayed(folder)
    newest_first = list(dict.fromkeys(event.aggregate_id for event in reversed(events)))
    assert recent[::-1] == newest_first


def test_the_preload_file_is_as_long_as_the_settings_of_the_server_say(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text("preload_aggregates = 7\n")
    assert "7 in the preload file" in output("rebuild", folder, "--config", config)
    assert len(json.loads((folder / "recent.json").read_text())) == 7
    config.write_text("preload_aggregates = 0\n")
    output("rebuild", folder, "--config", config)
    assert json.loads((folder / "recent.json").read_text()) == []
    assert "settings file" in refused("rebuild", folder, "--config", tmp_path / "missing.toml", code=2)


def test_no_file_is_listed_after_one_that_could_not_be_sorted(unsorted_folder: Path) -> None:
    path = unsorted_folder / "events/0000000002.events"
    raw = path.read_bytes()
    path.write_bytes(raw[:5000] + b"rot" + raw[5003:])
    assert str(path) in run("rebuild", unsorted_folder).stderr
    directory = Directory(unsorted_folder / "directory")
    assert list(directory.covered()) == [1]
    directory.close()
    path.write_bytes(raw)
    events = _replayed(unsorted_folder)
    assert [event.sequence for event in events] == list(range(1, 1_801))
    assert verify(unsorted_folder).sound


def test_a_folder_in_use_is_refused(serve: Serve, folder: Path) -> None:
    server = serve(data=folder)
    said = refused("rebuild", folder)
    assert said == f"{folder}: in use by process {server.process.pid}; stop it first: the files it serves from are replaced"


def test_a_folder_that_is_not_a_store_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in refused("rebuild", tmp_path / "missing")
    assert "no store here" in refused("rebuild", tmp_path)
    (folder / "events/0000000002.events").unlink()
    assert "0000000002.events: is missing" in refused("rebuild", folder)


def test_a_damaged_event_file_is_not_changed_and_named(folder: Path) -> None:
    path = folder / "events/0000000002.events"
    raw = bytearray(path.read_bytes())
    raw[4096 + 70] ^= 1
    path.write_bytes(raw)
    result = run("rebuild", folder)
    assert result.returncode == 1
    assert f"error: {path}: corrupt at byte offset 4096" in result.stderr
    assert path.read_bytes() == raw
    assert [finding.file for finding in verify(folder).findings] == [str(path)]


class _Killed(BaseException):
    """Ends the process."""


class _DyingFiles(OsFiles):
    """The real disk, for a process that dies before its Nth change."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self._left = changes

    def _change(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Killed

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        if create:
            self._change()
        file = super().open(path, create=create, write=write)
        write_at = file.write_at

        def dying_write(offset: int, buffers: Any) -> None:
            self._change()
            write_at(offset, buffers)

        file.write_at = dying_write  # type: ignore[method-assign] # this one dies in time
        return file

    def rename(self, source: Path, target: Path) -> None:
        self._change()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._change()
        super().remove(path)


@pytest.mark.long
def test_a_rebuild_may_be_killed_before_any_change(unsorted_folder: Path, tmp_path: Path) -> None:
    expected = _replayed(Path(shutil.copytree(unsorted_folder, tmp_path / "reference")))
    changes = 0
    while True:
        copy = Path(shutil.copytree(unsorted_folder, tmp_path / f"killed-{changes}"))
        try:
            rebuild(copy, files=_DyingFiles(changes))
        except _Killed:
            assert verify(copy).sound, changes
            if changes % 3:
                rebuild(copy)
            assert _replayed(copy) == expected, changes
            assert verify(copy).sound, changes
            shutil.rmtree(copy)
            changes += 1
        else:
            break
    assert changes > 20


@pytest.mark.heavy
def test_a_rebuild_killed_by_the_system_is_finished_by_another(serve: Serve, tmp_path: Path) -> None:
    server = serve("--file-size-bytes", "200000", "--set", "sort=false")
    events = [{"aggregate_id": f"a-{n % 97}", "command_id": f"c-{n}", "event_type": "T", "timestamp": n, "data": "x" * 100}
              for n in range(20_000)]  # fmt: skip
    output("import", "-", store=server.store, text="\n".join(map(json.dumps, events)))
    server.stop()
    folder = server.data / "events"
    rebuilding = start("rebuild", server.data)
    wait_for(lambda: len(list(folder.glob("*.index"))) > 3, "the rebuild has begun")
    os.kill(rebuilding.pid, signal.SIGKILL)
    rebuilding.wait(30)
    assert len(list(folder.glob("*.index"))) < len(list(folder.glob("*.events"))) - 1, "killed too late to show anything"
    assert verify(server.data).sound
    output("rebuild", server.data)
    verified = verify(server.data)
    assert (verified.sound, verified.events, verified.sorted_files) == (True, 20_000, verified.event_files - 1)
