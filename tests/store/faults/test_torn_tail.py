"""A batch that was being written when the process died is dropped whole; its size is reported and a copy kept."""

from __future__ import annotations

from errno import EIO

import pytest

from eventstore.errors import FolderRefused
from eventstore.model import NewEvent
from tests.simulated_disk import SimulatedCrash, SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import DATA, EVENTS, Stepped, raw

FILE = EVENTS / "0000000001.events"
CUT = DATA / "cut"


def crashed_store(opened: Maker) -> tuple[SimulatedDisk, int, int, Stepped]:
    """Returns the disk of a killed process, where the last batch begins and ends, and the state before it."""
    store = opened()
    for number in range(5):
        store.append(raw(f"order-{number % 2}", f"command-{number}"))
    start = store.engine.front.end
    store.append(raw("order-1", "last", NewEvent("Placed", b"p" * 90), NewEvent("Paid", b"", b"m" * 30)))
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk, start, store.engine.front.end, store


def test_a_tail_cut_at_every_byte_of_the_last_batch_drops_the_batch_and_the_store_opens(
    opened: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    disk, start, end, store = crashed_store(opened)
    content, state = disk.content(FILE), store.state()
    store.abandon()
    for cut in range(start, end):
        for padding in (b"", bytes(700)):
            left = disk.crash("kept")
            left.replace(FILE, content[:cut] + padding)
            caplog.clear()
            store = opened(left, f"cut-{cut}-{len(padding)}")
            torn = content[start:cut].rstrip(b"\0")
            assert store.state() == state[:5]
            assert store.opened.report.torn_bytes == len(torn)
            assert len(left.content(FILE)) == start, "and it is gone from the file"
            if torn:
                (copy,) = left.names(CUT)
                assert store.opened.report.torn_copy == str(CUT / copy)
                assert left.content(CUT / copy) == torn
                assert f"cut {len(torn)} bytes" in caplog.text
                assert str(start) in copy
            assert store.append(raw("order-1", "last", expected=2)) == [(0, 3, 6)]
            store.close()


def test_a_torn_tail_cut_twice_leaves_two_copies(opened: Maker) -> None:
    disk, start, end, store = crashed_store(opened)
    content = disk.content(FILE)
    store.abandon()
    for turn in range(1, 4):
        disk = disk.crash("kept")
        disk.replace(FILE, content[: end - 10 * turn])
        store = opened(disk, f"turn-{turn}")
        assert len(disk.names(CUT)) == turn
        store.abandon()
    copies = {disk.content(CUT / name) for name in disk.names(CUT)}
    assert copies == {content[start : end - 10 * turn].rstrip(b"\0") for turn in (1, 2, 3)}


@pytest.mark.parametrize("full_again", [False, True])
def test_a_torn_tail_on_a_full_disk_is_cut_and_the_store_opens(
    opened: Maker, caplog: pytest.LogCaptureFixture, full_again: bool
) -> None:
    disk, start, end, store = crashed_store(opened)
    content, state = disk.content(FILE), store.state()
    store.abandon()
    disk = disk.crash("kept")
    disk.replace(FILE, content[: end - 5])
    torn = content[start : end - 5].rstrip(b"\0")
    disk.capacity_bytes = disk.allocated_bytes - (len(torn) if full_again else 0)  # another process takes what the cut frees
    store = opened(disk, "full")
    assert store.state() == state[:5]
    assert len(disk.content(FILE)) == start
    assert store.opened.report.torn_bytes == len(torn)
    copies = [disk.content(CUT / name) for name in disk.names(CUT)]
    if full_again:
        assert store.opened.report.torn_copy is None
        assert copies == []
        assert f"cut {len(torn)} bytes" in caplog.text
        assert "no space for a copy" in caplog.text
    else:
        assert copies == [torn], "the cut has freed the space for the copy"
    disk.capacity_bytes = None
    assert store.append(raw("order-1", "last", expected=2)) == [(0, 3, 6)]


@pytest.mark.parametrize("full", [False, True])
def test_starts_interrupted_at_any_operation_keep_one_copy_of_a_torn_tail(opened: Maker, full: bool) -> None:
    disk, start, end, store = crashed_store(opened)
    content = disk.content(FILE)
    store.abandon()
    torn = content[start : end - 5].rstrip(b"\0")
    for nth in range(1, 100):
        left = disk.crash("kept")
        left.replace(FILE, content[: end - 5])
        left.capacity_bytes = left.allocated_bytes if full else None
        left.crash_at(nth)
        try:
            opened(left, f"interrupted-{nth}").abandon()
        except SimulatedCrash:
            left = left.crash("kept")
            opened(left, f"again-{nth}").abandon()
            copies = [left.content(CUT / name) for name in left.names(CUT)]
            assert copies == [torn] or (full and len(copies) <= 1), "on a full disk the copy follows the cut"
        else:
            return
    raise AssertionError("the start never ends")


def test_starts_that_cannot_cut_leave_one_copy(opened: Maker) -> None:
    disk, start, end, store = crashed_store(opened)
    content = disk.content(FILE)
    store.abandon()
    disk = disk.crash("kept")
    disk.replace(FILE, content[: end - 5])
    for attempt in range(3):
        disk.fail("truncate", 1, EIO, path_contains=FILE.name)
        with pytest.raises(FolderRefused):
            opened(disk, f"attempt-{attempt}")
    opened(disk, "last")
    assert [disk.content(CUT / name) for name in disk.names(CUT)] == [content[start : end - 5].rstrip(b"\0")]


def test_a_clean_end_leaves_nothing_to_cut(opened: Maker, caplog: pytest.LogCaptureFixture) -> None:
    _, _, _, store = crashed_store(opened)
    state = store.state()
    store = store.reopen()
    assert store.opened.report.torn_bytes == 0
    assert store.opened.report.torn_copy is None
    assert "cut" not in caplog.text
    assert store.state() == state
    assert "cut" not in store.disk.names(DATA)
