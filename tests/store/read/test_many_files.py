"""An aggregate in more files than may be open: a read opens what it reads, and nothing on an event loop."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.chunks.files import File, NotCached
from eventstore.model import ANY, VERSION_MAX, Commit, Committed, NewEvent
from eventstore.records.event_page import decode_page
from eventstore.store.open_store import open_store
from eventstore.store.read import replay
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import DATA, SMALL, Stepped, raw

FILES = 40


class WatchedDisk(SimulatedDisk):
    """Knows which files were opened."""

    def __init__(self) -> None:
        super().__init__(0)
        self.opened: list[str] = []

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        self.opened.append(path.name)
        return super().open(path, create=create, write=write)


@pytest.fixture
def store(opened: Maker) -> Stepped:
    """An aggregate with two events in each of many sorted files; four of each kind may be open."""
    store = opened(WatchedDisk(), settings=replace(SMALL, open_files_max=4))
    for number in range(FILES):
        store.append(raw("wide", f"{number}", NewEvent("T", b"1"), NewEvent("T", b"2")))
        store.append(raw("filler", f"{number}", NewEvent("T", bytes(3_600))))
    store.append(raw("filler", "last", NewEvent("T", bytes(3_600))))
    assert store.sort() >= FILES - 1
    store.close()
    return Stepped(store.disk, store.directory, replace(store.settings, preload_aggregates=0))


def opened_files(store: Stepped) -> int:
    assert isinstance(store.disk, WatchedDisk)
    return len(store.disk.opened)


@pytest.mark.parametrize(
    ("low", "high", "backwards", "versions"),
    [(1, 2, False, [1, 2]), (41, 44, False, [41, 42, 43, 44]), (1, 2 * FILES - 2, True, [2 * FILES - 3, 2 * FILES - 2])],
)
def test_a_read_opens_only_the_files_it_reads(
    low: int, high: int, backwards: bool, versions: list[int], store: Stepped
) -> None:
    before = opened_files(store)
    page = store.engine.replay("wide", low, high, backwards, 1 if backwards else 1 << 20)
    assert [event.version for event in decode_page(page.records)] == versions
    assert opened_files(store) - before <= 4, "a file and an index for each of two files"
    store.close()


def test_an_event_loop_opens_nothing(store: Stepped) -> None:
    before = opened_files(store)
    assert store.engine.version("wide") == 2 * FILES
    assert opened_files(store) == before
    store.append(raw("wide", "more", NewEvent("T", b"")))
    store.engine.files._indexes.clear()
    before = opened_files(store)
    with pytest.raises(NotCached):
        store.engine.replay("wide", 1, None, False, 1 << 20, cached_only=True)
    assert opened_files(store) == before
    assert [event.version for event in store.read("wide", page_bytes=1_000)] == list(range(1, 2 * FILES + 2))
    store.close()


@pytest.mark.parametrize("backwards", [False, True])
def test_a_page_is_read_from_a_bounded_number_of_files(
    backwards: bool, store: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FILES_PER_PAGE_MAX", 6)
    low, high, versions = 1, VERSION_MAX, []
    while True:
        before = opened_files(store)
        page = store.engine.replay("wide", low, high, backwards, 1 << 20)
        assert opened_files(store) - before <= 2 * 6
        found = [event.version for event in decode_page(page.records)]
        versions += reversed(found) if backwards else found
        if page.next is None:
            break
        low, high = (low, page.next) if backwards else (page.next, high)
    due = range(1, 2 * FILES + 1)
    assert versions == list(reversed(due) if backwards else due)
    store.close()


async def test_an_append_to_the_embedded_store_opens_nothing_on_the_event_loop(
    store: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    threads: list[int] = []
    really = WatchedDisk.open

    def watched(disk: WatchedDisk, path: Path, *, create: bool = False, write: bool = False) -> File:
        threads.append(threading.get_ident())
        return really(disk, path, create=create, write=write)

    settings = replace(store.settings, preload_aggregates=0)
    async with open_store(DATA, settings, files=store.disk, directory=store.directory) as again:
        monkeypatch.setattr(WatchedDisk, "open", watched)
        assert (await again.append("wide", [NewEvent("T", b"")], 2 * FILES)).version == 2 * FILES + 1
        assert len(threads) >= FILES - 10
        assert threading.get_ident() not in threads
        again.engine.version_cache.clear()
        threads.clear()
        done = await again.append_many([Commit("wide", [NewEvent("T", b"")], ANY, "many")])
        assert isinstance(done[0], Committed)
        assert len(threads) >= FILES - 10
        assert threading.get_ident() not in threads
