"""A failing disk: commits that were not synced are not acknowledged, and a failed read is never "not found"."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from eventstore.errors import EventStoreError, Poisoned, ReadFailed
from eventstore.model import NewEvent
from eventstore.store.append import COMMITTED, DUPLICATE, REFUSED
from tests.simulated_disk import CRASH_MODES, SimulatedDisk
from tests.store.conftest import Maker, order
from tests.store.stepped import Stepped, raw


def on_disk(store: Stepped) -> SimulatedDisk:
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk


@pytest.mark.parametrize("operation", ["sync", "write_at"])
def test_an_io_error_in_a_batch_acknowledges_nothing_of_it_and_poisons_the_store(filled: Stepped, operation: str) -> None:
    disk, before = on_disk(filled), filled.state()
    disk.fail(operation, 1, errno.EIO)
    with pytest.raises(Poisoned, match="check the disk, then restart"):
        filled.append(raw("order-1", "a"), raw("order-2", "b"))
    assert isinstance(filled.engine.failed, Poisoned)
    operations = disk.operations
    outcomes = filled.append(raw("order-1", "a"), raw("order-3", "c"))
    assert [(status, type(error)) for status, error, _ in outcomes] == [(REFUSED, Poisoned)] * 2
    assert disk.operations == operations, "the sync is not retried, and nothing more is written"
    assert filled.state() == before, "reads continue"
    assert filled.read("order-1") == [event for event in before if event.aggregate_id == "order-1"]


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_after_a_failed_sync_the_restarted_store_makes_durable_what_it_reads(opened: Maker, mode: str) -> None:
    for seed in range(12):
        store = opened(SimulatedDisk(seed), f"before-{seed}")
        for number in range(3):
            store.append(order(number))
        before, disk = store.state(), on_disk(store)
        disk.fail("sync", 1, errno.EIO)
        batch = [raw(f"order-{number}", "large", NewEvent("L", bytes([number]) * 1_200)) for number in (1, 2)]
        with pytest.raises(Poisoned):
            store.append(*batch)
        restarted = opened(disk.crash("kept"), f"after-{seed}")
        state = restarted.state()
        assert state[: len(before)] == before
        assert len(state) in range(len(before), len(before) + 3), "each commit is there or not"
        again = opened(on_disk(restarted).crash(mode), f"again-{seed}")  # type: ignore[arg-type] # a mode
        assert again.state() == state, "commits that were read once are durable, although their first sync failed"
        assert {outcome[0] for outcome in again.append(*batch)} <= {COMMITTED, DUPLICATE}


def test_a_poisoned_store_works_after_a_restart(filled: Stepped, opened: Maker) -> None:
    disk, before = on_disk(filled), filled.state()
    disk.fail("sync", 1, errno.EIO)
    with pytest.raises(Poisoned):
        filled.append(raw("order-1", "a"))
    store = opened(disk.crash("lost"), "after")
    assert store.state() == before
    assert store.append(raw("order-1", "a"))[0][0] == COMMITTED


def sorted_version(store: Stepped) -> int:
    """Returns a version of order-1 that is in the first sorted file."""
    last = store.engine.files.headers[0].last_sequence
    return next(event.version for event in store.state() if event.aggregate_id == "order-1" and event.sequence <= last)


@pytest.mark.parametrize("where", ["sorted", "unsorted"])
def test_a_read_that_fails_is_an_error_and_not_an_empty_answer(filled: Stepped, where: str) -> None:
    version = sorted_version(filled) if where == "sorted" else filled.engine.version("order-1")
    expected = filled.read("order-1")
    disk = on_disk(filled)
    disk.fail("read_at", 1, errno.EIO)
    with pytest.raises(ReadFailed, match="Input/output error"):
        filled.read("order-1", version, version)
    assert filled.read("order-1") == expected, "the next one may succeed"


def test_a_scan_that_fails_raises_an_error(filled: Stepped) -> None:
    expected = filled.state()
    disk = on_disk(filled)
    disk.fail("read_at", 1, errno.EIO)
    with pytest.raises(ReadFailed):
        filled.read_all()
    assert filled.read_all() == expected


@pytest.mark.parametrize("operation", ["open", "map"])
def test_a_file_that_cannot_be_opened_is_an_error_and_not_an_empty_answer(
    filled: Stepped, opened: Maker, operation: str
) -> None:
    disk, expected = on_disk(filled), filled.state()
    filled.close()
    store = opened(disk)
    for read in (store.read_all, lambda: store.read("order-1")):
        disk.fail(operation, 1, errno.EMFILE)
        with pytest.raises(ReadFailed, match="Too many open files"):
            read()
        assert [event for event in expected if event.aggregate_id == "order-1"] == store.read("order-1")
        store.engine.files.close()


def test_a_repeated_command_that_cannot_be_read_is_refused_and_not_appended_again(filled: Stepped) -> None:
    disk = on_disk(filled)
    for number in (2, 97):  # in a sorted file, and in memory
        version = filled.engine.version(f"order-{number % 5}")
        disk.fail("read_at", 1, errno.EIO)
        ((status, error, _),) = filled.append(order(number))
        assert status == REFUSED
        assert isinstance(error, ReadFailed)
        assert filled.append(order(number))[0][0] == DUPLICATE
        assert filled.engine.version(f"order-{number % 5}") == version


@pytest.mark.parametrize("operation", ["read_at", "open", "names", "size"])
def test_a_disk_that_cannot_be_read_at_opening_is_an_error_and_changes_nothing(
    filled: Stepped, opened: Maker, operation: str
) -> None:
    disk, expected = on_disk(filled), filled.state()
    filled.close()
    nth, struck = 0, True
    while struck:
        nth += 1
        lines = len(disk.trace)
        disk.fail(operation, nth, errno.EIO)
        with suppress(EventStoreError):  # it depends on nth whether it fails
            opened(disk).close()
        struck = any("errno 5 from" in line for line in disk.trace[lines:])
        disk = disk.crash("kept")
    assert nth > 3
    assert opened(disk).state() == expected


def test_an_error_while_opening_names_the_file_that_cannot_be_read(filled: Stepped, opened: Maker) -> None:
    disk = on_disk(filled)
    filled.close()
    disk.fail("read_at", 1, errno.EIO, path_contains="0000000003.events")
    with pytest.raises(EventStoreError, match=r"0000000003\.events.*Input/output error"):
        opened(disk)
