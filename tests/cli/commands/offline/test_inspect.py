from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import Server, output, refused, run

Serve = Callable[..., Server]


def _facts(path: Path, *options: object) -> dict[str, Any]:
    """Returns the report. The exit code must tell whether it lists damage."""
    result = run("inspect", path, "--json", *options)
    report: dict[str, Any] = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (1 if report["damage"] else 0, "")
    return report


def _flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (".", "a data folder"),
        ("store.json", "the identity of a store"),
        ("lock", "the lock file of a store"),
        ("recent.json", "the preload file"),
        ("directory", "the directory (LMDB): aggregate id → where its events are"),
        ("directory/data.mdb", "the directory (LMDB): aggregate id → where its events are"),
        ("events", "the event files of a store"),
        ("events/chunks.json", "the count of event files"),
        ("events/chunks.json.previous", "the count of event files, the previous copy"),
        ("events/0000000001.events", "an event file, sorted"),
        ("events/0000000001.index", "an event index"),
    ],
)
def test_every_file_of_a_store_is_recognised_and_sound(folder: Path, name: str, kind: str) -> None:
    report = _facts(folder / name)
    assert (report["kind"], report["damage"]) == (kind, [])
    said = output("inspect", folder / name).splitlines()[-1]
    if (folder / name).is_dir() or name.endswith(".mdb"):
        assert "not checked" in said
        assert "`eventstore verify` does" in said
    else:
        assert said == "  no damage"


def test_sound_headers_do_not_make_a_folder_sound(folder: Path) -> None:
    _flip(folder / "events/0000000002.events", 4_100)
    for path in (folder, folder / "events"):
        said = output("inspect", path)
        assert "no damage" not in said
        assert "records not checked" in said
    assert "1 fault" in run("verify", folder).stdout


def test_a_folder_with_a_damaged_header_is_damaged(folder: Path) -> None:
    _flip(folder / "events/0000000002.events", 20)
    result = run("inspect", folder)
    assert result.returncode == 1
    assert "DAMAGED  0000000002.events" in result.stdout


def test_an_event_file_shows_its_header_and_first_records(folder: Path) -> None:
    report = _facts(folder / "events/0000000001.events", "--records", 3)
    assert (report["fields"]["number"], report["fields"]["first sequence"]) == (1, 1)
    assert report["fields"]["footer"] == "matches the header"
    assert report["fields"]["records"] == report["fields"]["readable records"]
    commits = report["tables"]["commits"]
    assert len(commits) == 3
    assert (commits[0]["offset"], commits[0]["aggregate id"], commits[0]["versions"]) == (4096, "aggregate-0", "1")


def test_completed_and_ongoing_files_are_distinguished(unsorted_folder: Path) -> None:
    files = sorted((unsorted_folder / "events").glob("*.events"))
    assert _facts(files[0])["kind"] == "an event file, completed"
    assert _facts(files[-1])["kind"] == "an event file, ongoing"


def test_an_index_shows_columns_splits_and_rows(folder: Path) -> None:
    report = _facts(folder / "events/0000000001.index", "--records", 2)
    assert report["fields"]["belongs to"] == "0000000001.events"
    assert report["fields"]["smallest id"] == "aggregate-0"
    assert {item["column"] for item in report["tables"]["columns"]} >= {"ordinal", "version", "frames", "block_crc"}
    assert {item["state"] for item in report["tables"]["columns"]} == {"good"}
    assert report["tables"]["splits"][0]["begins with"] == "aggregate-0"
    assert len(report["tables"]["rows"]) == 2
    shutil.copy(folder / "events/0000000002.index", folder / "events/0000000001.index")
    assert _facts(folder / "events/0000000001.index")["fields"]["belongs to"] == "not to 0000000001.events beside it"


@pytest.mark.parametrize(("offset", "words"), [(20, "header"), (4100, "at byte 4096"), (-40, "footer")])
def test_a_damaged_event_file_is_described_as_far_as_possible(folder: Path, offset: int, words: str) -> None:
    _flip(folder / "events/0000000002.events", offset)
    report = _facts(folder / "events/0000000002.events")
    assert report["fields"]["number"] == 2
    assert words in report["damage"][0]
    assert "DAMAGED" in run("inspect", folder / "events/0000000002.events").stdout


@pytest.mark.parametrize("name", ["events/0000000001.events", "events/0000000001.index", "store.json", "events/chunks.json"])
@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"\xff" * 200, b"[[[["])
def test_a_file_with_damaged_content_is_recognised_by_its_name(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert _facts(folder / name)["damage"]


def test_inspecting_a_damaged_directory_does_not_crash(folder: Path) -> None:
    data = folder / "directory/data.mdb"
    data.write_bytes(data.read_bytes()[:9000])
    assert "rebuild" in _facts(folder / "directory")["damage"][0]


def test_a_torn_tail_that_was_cut_is_described(folder: Path) -> None:
    (folder / "cut").mkdir()
    records = (folder / "events/0000000001.events").read_bytes()[4096:]
    (folder / "cut/0000000009-4096-0").write_bytes(records[:300])
    report = _facts(folder / "cut/0000000009-4096-0")
    assert report["kind"] == "the copy of a torn tail"
    assert report["fields"]["readable records"] == 1


def test_a_folder_in_use_can_be_inspected(serve: Serve) -> None:
    server = serve()
    assert _facts(server.data)["fields"]["in use"] == f"by process {server.process.pid}"


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Ada")
    assert "is not a file of an event store" in refused("inspect", tmp_path / "letter.txt", code=2)
    assert "is neither a data folder" in refused("inspect", tmp_path, code=2)
    assert "No such file" in refused("inspect", tmp_path / "missing")
