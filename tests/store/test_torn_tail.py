"""A batch that was being written when the process ended: dropped whole, said how much it was, and a copy kept."""

from __future__ import annotations

import pytest

from eventstore.model import NewEvent
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import DATA, EVENTS, Stepped, raw

FILE = EVENTS / "0000000001.events"
CUT = DATA / "cut"


def crashed_store(opened: Maker) -> tuple[SimulatedDisk, int, int, Stepped]:
    """The disk of a process that was killed, where the last batch begins and ends, and the store as it was."""
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


def test_a_torn_tail_that_is_cut_twice_has_two_copies(opened: Maker) -> None:
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


def test_a_clean_end_leaves_nothing_to_cut(opened: Maker, caplog: pytest.LogCaptureFixture) -> None:
    _, _, _, store = crashed_store(opened)
    state = store.state()
    store = store.reopen()
    assert store.opened.report.torn_bytes == 0
    assert store.opened.report.torn_copy is None
    assert "cut" not in caplog.text
    assert store.state() == state
    assert "cut" not in store.disk.names(DATA)
