"""A full disk at any step: the append is refused and not stored, reads continue, and appends work again later."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from eventstore.errors import EventStoreError, Poisoned, StorageFull
from eventstore.model import NewEvent
from eventstore.settings.store import StoreSettings
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, AppendOutcome, NewCommit
from eventstore.store.open_store import open_store
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.event_index import open_index
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker, order
from tests.store.stepped import EVENTS, Stepped, raw

LARGE = [NewEvent("Large", bytes(5_000))]
WIDE = StoreSettings(file_size_bytes=2 << 20, preallocate_bytes=1 << 20, sort=False)


def on_disk(store: Stepped) -> SimulatedDisk:
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk


def test_an_append_on_a_full_disk_is_refused_with_a_clear_error_and_stores_nothing(filled: Stepped) -> None:
    disk, before = on_disk(filled), filled.state()
    disk.capacity_bytes = disk.allocated_bytes
    with pytest.raises(StorageFull, match=r"no space left in /data/events .*nothing of this append was stored"):
        filled.append(raw("order-0", "large", *LARGE), raw("order-9", "with-it", *LARGE))
    assert filled.state() == before
    assert filled.engine.version("order-9") == 0
    assert filled.engine.find_command("order-0", "large") is None
    assert filled.engine.failed is None


def test_reads_continue_and_appends_work_again_once_there_is_space(filled: Stepped) -> None:
    disk, before = on_disk(filled), filled.state()
    disk.capacity_bytes = disk.allocated_bytes
    for attempt in range(5):
        with pytest.raises(StorageFull):
            filled.append(raw("order-0", f"large-{attempt}", *LARGE))
        assert filled.read("order-0") == [event for event in before if event.aggregate_id == "order-0"]
    disk.capacity_bytes = None
    version = filled.engine.version("order-0")
    assert filled.append(raw("order-0", "large-0", *LARGE)) == [(COMMITTED, version + 1, len(before) + 1)]
    assert filled.append(raw("order-0", "large-0", *LARGE))[0][0] == DUPLICATE
    store = filled.reopen()
    assert [event.version for event in store.read("order-0")] == list(range(1, version + 2))


def test_commits_after_a_batch_that_did_not_fit_are_refused_with_it(filled: Stepped) -> None:
    engine, before = filled.engine, filled.state()
    disk = on_disk(filled)
    engine.append_batch([raw("order-0", "first", *LARGE)])
    segment = engine.take()
    assert segment is not None
    engine.append_batch([raw("order-0", "second", *LARGE), raw("order-7", "third", *LARGE)])
    disk.capacity_bytes = disk.allocated_bytes
    with pytest.raises(StorageFull) as full:
        engine.write(segment)
    engine.roll_back(full.value)
    assert engine.barrier == engine.visible_sequence == len(before)
    assert engine.take() is None
    assert filled.state() == before
    disk.capacity_bytes = None
    assert [outcome[0] for outcome in filled.append(raw("order-7", "third", *LARGE))] == [COMMITTED]


def error_of(store: Stepped, commit: NewCommit) -> EventStoreError | None:
    """Returns the error of an append, or None if the commit was stored."""
    try:
        ((status, *_),) = store.append(commit)
    except EventStoreError as error:
        return error
    assert status == COMMITTED
    return None


OPERATIONS = ("write_at", "truncate", "preallocate", "create", "rename", "remove")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_that_is_full_at_any_step_of_a_roll_loses_nothing_and_rolls_later(operation: str, opened: Maker) -> None:
    nth, struck = 0, True
    while struck:
        nth += 1
        store = opened(SimulatedDisk(nth), f"{operation}-{nth}")
        for number in range(20):
            store.append(order(number))
        before, disk = store.state(), on_disk(store)
        disk.fail(operation, nth, errno.ENOSPC)
        for number in range(20, 60):
            error = error_of(store, order(number))
            if isinstance(error, Poisoned):
                assert "completing a chunk" in str(error), "the header may be half the old one and half the new one"
                break
            if error is not None:
                assert store.state() == before
                assert error_of(store, order(number)) is None, "only one operation fails"
            before = store.state()
        struck = any("errno" in line for line in disk.trace)
        after = opened(disk.crash("lost"), f"{operation}-{nth}-after")
        assert after.state() == before


def test_a_full_disk_while_sorting_leaves_the_unsorted_file_serving_and_sorts_later(opened: Maker) -> None:
    store = opened()
    for number in range(60):
        store.append(order(number))
    before, disk = store.state(), on_disk(store)
    disk.capacity_bytes = disk.allocated_bytes + 5_000
    with pytest.raises(OSError, match="No space left"):
        store.sort(files=1)
    assert store.state() == before
    assert store.append(raw("order-1", "small"))[0][0] == COMMITTED
    disk.capacity_bytes = None
    before = store.state()
    assert store.sort() > 1
    assert store.state() == before
    assert not [name for name in disk.names(EVENTS) if name.endswith(".tmp")]


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB, if this process may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip(f"mounting a file system: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)


def many(opened: Maker) -> Stepped:
    """Returns a store with a sorted file of 5,000 aggregates that no directory covers yet."""
    store = opened(settings=WIDE)
    store.append(*(raw(f"customer-{number:05d}-with-a-long-name-{number:050d}", f"c{number}") for number in range(5_000)))
    store.append(raw("last", "last", NewEvent("Large", bytes(2 << 20))))
    return store


def test_a_full_disk_under_the_directory_changes_nothing_in_it_and_it_grows_later(
    opened: Maker, small_filesystem: Path
) -> None:
    store = many(opened)
    assert store.sort() == 1
    index = open_index(store.disk, EVENTS / "0000000001.index")
    directory = Directory(small_filesystem / "lmdb")
    with pytest.raises(StorageFull, match="free some space"):
        directory.add_file(index)
    assert directory.count() == 0
    assert directory.covered() == {}
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"tmpfs", str(small_filesystem).encode(), b"tmpfs", 32, b"size=64m") == 0, "MS_REMOUNT"
    directory.add_file(index)
    assert directory.count() == 5_000
    directory.close()


def test_the_directory_grows_when_its_map_is_full(opened: Maker, tmp_path: Path) -> None:
    store = many(opened)
    store.sort()
    directory = Directory(tmp_path / "tiny", map_bytes=64 * 1024)
    directory.add_file(open_index(store.disk, EVENTS / "0000000001.index"))
    assert directory.count() == 5_000
    assert directory.get(b"customer-00000-with-a-long-name-" + b"0" * 50) is not None
    directory.close()


def test_an_outcome_that_depends_on_a_commit_that_did_not_fit_is_an_error(filled: Stepped) -> None:
    engine = filled.engine
    disk = on_disk(filled)
    version = engine.version("order-0")
    first = engine.append_batch([raw("order-0", "large", *LARGE, expected=version)])
    conflict = engine.append_batch([raw("order-0", "other", expected=version)])
    assert (first[0][0], conflict[0][:2]) == (COMMITTED, (CONFLICT, version + 1))
    disk.capacity_bytes = disk.allocated_bytes
    with pytest.raises(StorageFull):
        filled.persist()
    disk.capacity_bytes = None
    assert filled.append(raw("order-0", "other", expected=version))[0][0] == COMMITTED
    assert filled.append(raw("order-0", "large", *LARGE, expected=version))[0][0] == CONFLICT


async def test_commits_submitted_while_a_failure_is_delivered_are_unaffected(tmp_path: Path) -> None:
    disk = SimulatedDisk(0)
    async with open_store("/data", WIDE, files=disk, directory=tmp_path / "lmdb") as store:
        committer, told = store.committer, trio.Event()
        again: list[AppendOutcome] = []

        def refused(outcomes: list[AppendOutcome]) -> None:
            assert isinstance(outcomes[0][1], StorageFull)
            disk.capacity_bytes = None
            committer.submit([raw("order-0", "again")], committed, told)
            committer.kick()

        def committed(outcomes: list[AppendOutcome]) -> None:
            again.extend(outcomes)
            told.set()

        disk.capacity_bytes = disk.allocated_bytes
        committer.submit([raw("order-0", f"large-{place}", *LARGE) for place in range(200)], refused, None)
        committer.kick()
        with trio.fail_after(10):
            await told.wait()
        assert again == [(COMMITTED, 1, 1)]
        assert [event.version async for event in store.read("order-0")] == [1]
