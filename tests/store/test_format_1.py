"""A store written when format 1 was fixed; it must stay readable as long as format 1 is supported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eventstore.chunks.files import OsFiles
from eventstore.errors import Corrupt
from eventstore.records.event_page import decode_page
from eventstore.store.opening import OpenStore, open_folder
from eventstore.store.sorted.event_index import open_index
from eventstore.store.sorted.sorting import sort_file, switch
from tests.fixtures import write_format_1
from tests.fixtures.write_format_1 import SETTINGS, as_json, clock, read_everything

FIXTURE = Path(write_format_1.__file__).with_name("format-1")
EXPECTED: list[dict[str, object]] = json.loads(FIXTURE.with_name("format-1.json").read_text())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "data"))


def opened(folder: Path) -> OpenStore:
    return open_folder(folder, SETTINGS, clock=clock)


def event_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "events").iterdir()) if path.suffix != ".previous"}


def test_the_store_of_format_1_holds_exactly_its_events(copy: Path) -> None:
    store = opened(copy)
    engine = store.engine
    assert [header.state for header in engine.files.headers] == ["sorted", "sorted", "completed", "ongoing"]
    assert store.report.torn_bytes == 0
    assert store.report.indexes_built == []
    assert [as_json(event) for event in read_everything(engine)] == EXPECTED
    for name in {str(event["aggregate_id"]) for event in EXPECTED}:
        due = [event for event in EXPECTED if event["aggregate_id"] == name]
        assert engine.version(name) == len(due)
        page = engine.replay(name, 1, None, False, 1 << 20)
        assert [as_json(event) for event in decode_page(page.records)] == due
    for event in EXPECTED:
        view = engine.find_command(str(event["aggregate_id"]), str(event["command_id"]))
        assert view is not None
        assert view.first_version <= int(str(event["version"])) <= view.last_version
    for number in (1, 2):
        engine.files.index(number).verify()
    store.close()


def test_the_store_of_format_1_is_appended_to_and_sorted_like_any_other(copy: Path) -> None:
    store = opened(copy)
    for commit in write_format_1.commits():
        ((status, *_),) = store.engine.append_batch([commit])
        assert status in (0, 1)
        while (segment := store.engine.take()) is not None:
            store.engine.write(segment)
            store.engine.mark_written(segment, durable=True)
    before = read_everything(store.engine)
    assert [as_json(event) for event in before[: len(EXPECTED)]] == EXPECTED
    write_format_1._sort(store, 3)
    assert read_everything(store.engine) == before
    store.close()


def test_an_index_of_format_2_gives_the_same_answers(copy: Path) -> None:
    for path in FIXTURE.with_name("index-2").iterdir():
        shutil.copy(path, copy / "events")
    store = opened(copy)
    assert store.report.indexes_built == []
    assert {store.engine.files.index(number).header.format for number in (1, 2)} == {2}
    assert [as_json(event) for event in read_everything(store.engine)] == EXPECTED
    for number in (1, 2):
        index = store.engine.files.index(number)
        index.verify()
        sort_file(store.engine.files.folder, number)
        switch(store.engine.files.folder, number)
        newer = open_index(OsFiles(), Path(index.name))
        assert newer.header.format == 3
        for name in index.columns.keys() - {"block_crc", "row_crc"}:
            column = index.columns[name]
            assert newer.columns[name][: index.header.rows].tolist() == column[: index.header.rows].tolist(), name
        for row in range(index.header.rows):
            assert newer.commit_begin(row) == index.commit_begin(row)
            assert newer.commit_end(row) == index.commit_end(row)
            assert newer.extent(row, row + 1) == index.extent(row, row + 1)
    store.close()


@pytest.mark.parametrize("column", ["record", "length"])
@pytest.mark.parametrize("folder", [FIXTURE / "events", FIXTURE.with_name("index-2")], ids=["format 1", "format 2"])
def test_a_look_up_in_an_older_index_bisects_only_bytes_that_were_checked(tmp_path: Path, folder: Path, column: str) -> None:
    path = Path(shutil.copy(folder / "0000000001.index", tmp_path))
    place = open_index(OsFiles(), path).header.columns[column]
    damaged = bytearray(path.read_bytes())
    damaged[place.offset + place.size // 2] ^= 8
    path.write_bytes(damaged)
    told: list[bool] = []
    with pytest.raises(Corrupt, match=f"checksum of column {column}"):
        open_index(OsFiles(), path, lambda: told.append(True))
    assert told, "a server builds it again"


def test_every_derived_file_of_format_1_can_be_rebuilt(copy: Path) -> None:
    for path in (copy / "events").glob("*.index"):
        path.unlink()
    store = opened(copy)
    assert store.report.indexes_built == [1, 2]
    assert [as_json(event) for event in read_everything(store.engine)] == EXPECTED
    for number in (1, 2):
        store.engine.files.index(number).verify()
    store.close()


@pytest.mark.usefixtures("without_key")
def test_event_files_written_today_are_format_1_byte_for_byte(tmp_path: Path) -> None:
    events = write_format_1.write(tmp_path / "data")
    assert [as_json(event) for event in events] == EXPECTED
    written, fixture = event_files(tmp_path / "data"), event_files(FIXTURE)
    assert written.keys() == fixture.keys()
    assert {name: raw for name, raw in written.items() if not name.endswith(".index")} == {
        name: raw for name, raw in fixture.items() if not name.endswith(".index")
    }
    assert OsFiles().names(tmp_path / "data") == OsFiles().names(FIXTURE)
