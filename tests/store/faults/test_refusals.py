"""A data folder that was changed from outside is refused: the error names the file, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.settings.store import StoreSettings
from eventstore.store.opening import open_folder
from tests.simulated_disk import CRASH_MODES, SimulatedCrash, SimulatedDisk
from tests.store.conftest import Maker, fill
from tests.store.stepped import DATA, EVENTS, Stepped, contents, document, order_of_files

STORE = DATA / "store.json"
CHUNKS = EVENTS / "chunks.json"


@pytest.fixture
def closed(opened: Maker) -> SimulatedDisk:
    """The disk of a cleanly closed store: sorted, completed and ongoing files."""
    store = fill(opened())
    assert order_of_files(store) == ["sorted", "sorted", "completed", "completed", "ongoing"]
    disk = store.disk
    store.close()
    assert isinstance(disk, SimulatedDisk)
    return disk


def events(number: int) -> Path:
    return EVENTS / f"{number:010d}.events"


def refuses(opened: Maker, disk: SimulatedDisk, names: str, error: type[EventStoreError] = FolderRefused) -> None:
    before = contents(disk)
    for _ in range(2):
        with pytest.raises(error) as refusal:
            opened(disk)
        assert names in str(refusal.value)
    assert contents(disk) == before


def test_the_error_for_a_folder_that_cannot_be_created_names_the_next_step() -> None:
    with pytest.raises(FolderRefused, match=r"^/proc/nothing: cannot be created there .*; choose another folder$"):
        open_folder(Path("/proc/nothing"), StoreSettings())


@pytest.mark.parametrize("number", [1, 3, 5], ids=["first", "middle", "last"])
def test_a_missing_event_file_is_refused(opened: Maker, closed: SimulatedDisk, number: int) -> None:
    closed.remove(events(number))
    refuses(opened, closed, events(number).name)


def test_an_extra_event_file_is_refused(opened: Maker, closed: SimulatedDisk) -> None:
    for number in (6, 7):
        closed.replace(events(number), closed.content(events(5)))
    refuses(opened, closed, events(7).name)


def test_a_foreign_file_among_the_event_files_is_refused(opened: Maker, closed: SimulatedDisk) -> None:
    closed.replace(EVENTS / "0000000003.events.copy", b"")
    refuses(opened, closed, "0000000003.events.copy")


def test_a_refused_foreign_folder_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderRefused, match=r"holds notes\.txt"):
        open_folder(tmp_path, StoreSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("number", [1, 4, 5])
def test_an_event_file_copied_to_the_next_number_is_refused(opened: Maker, closed: SimulatedDisk, number: int) -> None:
    target = number + 1
    closed.replace(events(target), closed.content(events(number)))
    refuses(opened, closed, events(target).name)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"x", lambda raw: raw[:4096], lambda raw: raw[:60]])
def test_an_event_file_of_the_wrong_size_is_refused(
    opened: Maker, closed: SimulatedDisk, number: int, change: Callable[[bytes], bytes]
) -> None:
    closed.replace(events(number), change(closed.content(events(number))))
    refuses(opened, closed, events(number).name, Corrupt)


@pytest.mark.parametrize("kept", [0, 100, 4_096, 5_000])
def test_an_ongoing_file_that_lost_its_end_after_a_close_is_refused(opened: Maker, closed: SimulatedDisk, kept: int) -> None:
    closed.replace(events(5), closed.content(events(5))[:kept])
    refuses(opened, closed, events(5).name, Corrupt)


@pytest.mark.parametrize("number", [1, 3, 5])
def test_an_event_file_of_a_newer_format_is_refused(opened: Maker, closed: SimulatedDisk, number: int) -> None:
    raw = bytearray(closed.content(events(number)))
    raw[8] += 1
    closed.replace(events(number), bytes(raw))
    refuses(opened, closed, events(number).name)


def test_a_store_of_a_newer_format_is_refused(opened: Maker, closed: SimulatedDisk) -> None:
    closed.replace(STORE, json.dumps({**document(closed, STORE), "format": 3}).encode())
    refuses(opened, closed, "store.json")


@pytest.mark.parametrize("path", [STORE, CHUNKS])
def test_a_missing_document_is_refused(opened: Maker, closed: SimulatedDisk, path: Path) -> None:
    closed.remove(path)
    refuses(opened, closed, path.name)


@pytest.mark.parametrize("path", [STORE, CHUNKS])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"store"'])
def test_a_damaged_document_is_refused(opened: Maker, closed: SimulatedDisk, path: Path, content: bytes) -> None:
    closed.replace(path, content)
    refuses(opened, closed, path.name, Corrupt)


def test_a_document_without_its_values_is_refused(opened: Maker, closed: SimulatedDisk) -> None:
    closed.replace(CHUNKS, b"{}")
    refuses(opened, closed, "chunks.json", Corrupt)


def test_a_store_without_a_uuid_is_refused(opened: Maker, closed: SimulatedDisk) -> None:
    closed.replace(STORE, b'{"format": 1, "store": "seven"}')
    refuses(opened, closed, "store.json", Corrupt)


def test_the_event_files_of_another_store_are_refused(opened: Maker, closed: SimulatedDisk) -> None:
    other = opened(directory="other")
    disk = other.disk
    assert isinstance(disk, SimulatedDisk)
    other.close()
    for name in closed.names(EVENTS):
        disk.replace(EVENTS / name, closed.content(EVENTS / name))
    refuses(opened, disk, "chunks.json")
    disk.replace(CHUNKS, closed.content(CHUNKS).replace(str(document(closed, STORE)["store"]).encode(), uuid_of(disk)))
    refuses(opened, disk, "0000000001.events")


def uuid_of(disk: SimulatedDisk) -> bytes:
    return str(document(disk, STORE)["store"]).encode()


def test_a_store_whose_events_are_missing_is_not_treated_as_new(opened: Maker, closed: SimulatedDisk) -> None:
    empty = SimulatedDisk(1)
    empty.make_folder(DATA)
    empty.replace(STORE, closed.content(STORE))
    refuses(opened, empty, "events")
    empty.make_folder(EVENTS)
    refuses(opened, empty, "chunks.json")


def test_a_folder_with_foreign_files_is_refused(opened: Maker) -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(DATA)
    disk.replace(DATA / "photos.zip", b"x")
    refuses(opened, disk, "photos.zip")


def test_a_crash_while_creating_a_store_never_prevents_creating_it_again(opened: Maker) -> None:
    rehearsal = SimulatedDisk(0)
    opened(rehearsal, "rehearsal")
    for nth in range(1, rehearsal.operations + 1):
        for mode in CRASH_MODES:
            disk = SimulatedDisk(nth)
            disk.crash_at(nth)
            with pytest.raises(SimulatedCrash):
                opened(disk, f"{mode}{nth}")
            store = opened(disk.crash(mode), f"{mode}{nth}")
            assert store.state() == []


def test_an_intact_store_is_not_refused(opened: Maker, closed: SimulatedDisk) -> None:
    store: Stepped = opened(closed)
    assert len(store.state()) == store.engine.visible_sequence > 100
