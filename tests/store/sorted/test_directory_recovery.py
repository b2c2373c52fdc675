"""Opening brings the directory up to date, and rebuilds it if it is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
import trio

import eventstore as es
from eventstore.model import NewEvent
from eventstore.settings.store import StoreSettings
from eventstore.store.append import DUPLICATE
from eventstore.store.sorted.event_index import open_index
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker, fill, order
from tests.store.sorted.directory_pages import (
    NAMES,
    PAGE,
    Many,
    answers_right,
    data,
    flip_keys,
    unclean,
    used_pages,
    zero_leaf_of,
)
from tests.store.stepped import DATA, EVENTS
from tests.waiting import eventually


@pytest.fixture
def every_directory_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.store.sorted.directory_recovery._READ_AT_ONCE_BYTES_MAX", 0)


def test_a_directory_closed_cleanly_is_kept(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    assert not (tmp_path / "lmdb" / "in-use").exists()
    store = opened(disk)
    assert store.opened.report.directory == "kept"
    assert (tmp_path / "lmdb" / "in-use").exists()
    answers_right(store, state)


def test_a_sound_directory_survives_the_probe_after_an_unclean_stop(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.directory == "kept"
    answers_right(store, state)


@pytest.mark.parametrize("kept", [0, 1, 100, PAGE, 2 * PAGE, 3 * PAGE + 17, -PAGE, -1])
@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after an unclean stop"])
def test_a_truncated_directory_is_rebuilt(opened: Maker, many: Many, tmp_path: Path, kept: int, clean: bool) -> None:
    disk, state = many
    raw_data = data(tmp_path / "lmdb").read_bytes()
    data(tmp_path / "lmdb").write_bytes(raw_data[:kept])
    if not clean:
        unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt") or kept == 0, "an empty one is a new one"
    answers_right(store, state)


@pytest.mark.long
def test_a_zeroed_page_is_found_by_the_probe_and_the_directory_is_rebuilt(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    directory = tmp_path / "lmdb"
    sound = data(directory).read_bytes()
    pages = used_pages(directory)
    assert len(pages) > 10
    rebuilt = 0
    for page in pages[:: max(1, len(pages) // 12)]:
        damaged = bytearray(sound)
        damaged[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
        data(directory).write_bytes(bytes(damaged))
        unclean(directory)
        store = opened(disk)
        rebuilt += store.opened.report.directory.startswith("rebuilt")
        assert store.state() == state
        for name in NAMES:
            assert store.engine.version(name) == 2, page
        store.close()
    assert rebuilt, "the pages in use are among them; the others are free"


@pytest.mark.usefixtures("every_directory_is_large")
def test_a_large_directory_is_not_read_completely_before_the_store_opens(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert not store.engine.directory.proven
    assert (tmp_path / "lmdb" / "in-use").read_bytes() == b"unproven"
    answers_right(store, state)
    state = store.state()
    store.close()
    store = opened(disk)
    assert store.engine.directory.proven, "that process did not die"
    store.close()
    zero_leaf_of(tmp_path / "lmdb", "customer-0350")
    unclean(tmp_path / "lmdb")
    disk.remove(DATA / "recent.json")  # no lookups
    store = opened(disk)
    assert store.opened.report.directory == "kept", "the damaged leaf was not read"
    store.abandon()


@pytest.mark.usefixtures("every_directory_is_large")
def test_after_a_death_with_an_unproven_directory_it_is_read_completely(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    zero_leaf_of(tmp_path / "lmdb", "customer-0350")
    (tmp_path / "lmdb" / "in-use").write_bytes(b"unproven")
    store = opened(disk)
    assert store.opened.report.directory == "rebuilt: it did not survive a probe"
    assert store.engine.directory.proven
    assert (tmp_path / "lmdb" / "in-use").read_bytes() == b""
    answers_right(store, state)


@pytest.mark.usefixtures("every_directory_is_large")
def test_a_large_directory_with_damaged_roots_is_rebuilt_before_it_is_used(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    raw_data = bytearray(data(tmp_path / "lmdb").read_bytes())
    for page in used_pages(tmp_path / "lmdb"):
        raw_data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    data(tmp_path / "lmdb").write_bytes(bytes(raw_data))
    unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt")
    answers_right(store, state)


SEVERAL_FILES = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024)


@pytest.fixture(scope="module")
def sorted_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a closed store with several sorted files, on a real disk."""
    path = tmp_path_factory.mktemp("sorted") / "data"

    async def make() -> None:
        async with es.open_store(path, SEVERAL_FILES) as store:
            await store.append_many([es.Commit(name, [NewEvent("T", bytes(400))], 0) for name in NAMES])
            with trio.fail_after(60):
                await store.maintenance.wait_until_sorted()

    trio.run(make)
    return path


@pytest.mark.parametrize("damage", [None, pytest.param(zero_leaf_of, marks=pytest.mark.long), flip_keys])
@pytest.mark.usefixtures("every_directory_is_large")
async def test_a_large_directory_is_read_completely_in_the_background(
    tmp_path: Path, sorted_on_disk: Path, damage: Callable[[Path, str], None] | None
) -> None:
    settings = SEVERAL_FILES
    shutil.copytree(sorted_on_disk, tmp_path / "data")
    directory = tmp_path / "data" / "directory"
    if damage is not None:
        damage(directory, "customer-0350")
    unclean(directory)
    (tmp_path / "data" / "recent.json").unlink()  # no lookups
    async with es.open_store(tmp_path / "data", settings) as store:
        assert store.report.directory == "kept"

        async def is_settled() -> bool:
            return store.engine.directory.proven or (await store.stats())["directory_damaged"] is True

        await eventually(is_settled, "the whole directory was read")
        assert store.engine.directory.proven is (damage is None)
        assert ((await store.stats())["attention"] is None) is (damage is None)
        assert (directory / "in-use").read_bytes() == (b"" if damage is None else b"unproven")
    async with es.open_store(tmp_path / "data", settings) as store:
        assert store.report.directory == ("kept" if damage is None else "rebuilt: it was found damaged")
        for name in NAMES[::7]:
            assert await store.version(name) == 1


def test_a_directory_of_another_layout_is_rebuilt(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    with lmdb.open(str(tmp_path / "lmdb"), max_dbs=3) as environment:
        environment.open_db(b"aggregates")
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt: its layout differs")
    answers_right(store, state)


def test_a_directory_that_covers_other_files_is_rebuilt(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    other = fill(opened(SimulatedDisk(9), "other"))
    other.close()
    (tmp_path / "lmdb" / "data.mdb").write_bytes((tmp_path / "other" / "data.mdb").read_bytes())
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt")
    answers_right(store, state)


def test_a_directory_that_lags_behind_catches_up(opened: Maker, tmp_path: Path) -> None:
    store = fill(opened())
    before = (tmp_path / "lmdb" / "data.mdb").read_bytes()
    store.sort()
    state, disk = store.state(), store.disk
    store.close()
    (tmp_path / "lmdb" / "data.mdb").write_bytes(before)
    assert isinstance(disk, SimulatedDisk)
    store = opened(disk)
    assert store.opened.report.directory == "kept"
    assert store.state() == state
    assert all(store.append(order(number))[0][0] == DUPLICATE for number in range(100))


def test_a_damaged_index_is_rebuilt_before_the_directory(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    offset = open_index(disk, EVENTS / "0000000001.index").header.columns["first_row"].offset
    disk.flip(EVENTS / "0000000001.index", offset + 8, 1)
    data(tmp_path / "lmdb").unlink()
    store = opened(disk)
    assert store.opened.report.indexes_built == [1]
    answers_right(store, state)
