"""Interruptions: an append without memory, a cancelled store, a sort whose parent died."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.chunks.folder import ChunkFolder
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import DIRECTORY
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.sorted.child_sorter import PROGRAM, ChildSorter
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.event_index import open_index
from eventstore.store.sorted.sorting import sort_file, switch
from tests.store.conftest import Maker
from tests.store.stepped import raw
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until


def test_after_an_interrupted_append_no_more_are_accepted(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", es.NewEvent("T", b"x")))

    class NoMemory(tuple[object, ...]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            raise MemoryError

    with pytest.raises(MemoryError):
        store.engine.append_batch([raw("a", "2", es.NewEvent("T", b"y")), NoMemory()])  # type: ignore[list-item]
    ((_, error, _),) = store.engine.append_batch([raw("a", "3", es.NewEvent("T", b"z"))])
    assert isinstance(error, es.Poisoned)
    assert [event.data for event in store.read("a")] == [b"x"]


async def test_cancelling_an_open_store_waits_for_appends_in_flight(tmp_path: Path) -> None:
    acknowledged = []
    with trio.CancelScope() as scope:
        async with es.open_store(tmp_path / "data", StoreSettings(sort=False)) as store, trio.open_nursery() as nursery:

            async def appending(name: str) -> None:
                for version in range(1000):
                    await store.append(name, [es.NewEvent("T", b"x")], version)
                    acknowledged.append((name, version + 1))
                    if len(acknowledged) == 40:
                        scope.cancel()

            for task in range(4):
                nursery.start_soon(appending, f"aggregate-{task}")
    assert scope.cancelled_caught
    async with es.open_store(tmp_path / "data") as store:
        for name, version in acknowledged:
            assert await store.version(name) >= version


async def test_an_exception_leaves_an_open_store_unwrapped(tmp_path: Path) -> None:
    with pytest.raises(es.VersionConflict) as caught:
        async with es.open_store(tmp_path / "data") as store:
            await store.append("a", [es.NewEvent("T")], 1)
    assert caught.value.fields["actual"] == 0


def test_a_sorting_process_gives_way_to_all_others_and_ends_when_its_parent_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", PROGRAM, str(tmp_path), str(tmp_path / DIRECTORY), "token"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdin is not None
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == 5, "it gives way")
        if _SESSIONS.exists():
            session = Path(f"/proc/{child.pid}/autogroup")
            wait_until(lambda: session.read_text().rstrip().endswith("nice 5"), "Linux weighs its session first")
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(timeout=DEADLINE_SECONDS) == 2


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel weighs processes only")
def test_sorting_processes_that_begin_together_all_give_way_without_being_root() -> None:
    """The kernel takes ten changes a second from all who are not."""
    command = [sys.executable, "-c", _OF_A_USER]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) for _ in range(4)
    ]
    try:
        for what in (b"loaded\n", b"5\n"):
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == what
            for child in children if what == b"loaded\n" else ():
                assert child.stdin is not None
                child.stdin.write(b"\n")
                child.stdin.flush()
        found = [Path(f"/proc/{child.pid}/autogroup").read_text().split()[-1] for child in children]
        assert found == ["5"] * 4
    finally:
        for child in children:
            child.kill()
            child.communicate()


_OF_A_USER = """
import ctypes, os, sys, threading
from eventstore.store import sorting_process
print("loaded", flush=True)
sys.stdin.buffer.raw.read(1)
if os.getuid() == 0:
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: the files of the process in /proc are its own again
sorting_process._yield_to_others()
print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)
threading.Event().wait()
"""
_SESSIONS = Path("/proc/sys/kernel/sched_autogroup_enabled")


async def fill_files(store: EmbeddedStore, commits: int = 100) -> None:
    for number in range(commits):
        await store.append(f"order-{number % 7}", [es.NewEvent("T", bytes(2000))], es.ANY, f"command-{number}")


async def test_a_folder_of_sorted_files_without_a_directory_gets_all_of_them_listed_with_the_last(tmp_path: Path) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024)
    async with es.open_store(tmp_path, settings) as store:
        await fill_files(store)
        await store.maintenance.wait_until_sorted()
        listed = store.engine.directory.covered()
    shutil.rmtree(tmp_path / DIRECTORY)
    sorter = ChildSorter(tmp_path, tmp_path / DIRECTORY)
    await sorter.list_in_directory(max(listed))
    await sorter.idle()
    directory = Directory(tmp_path / DIRECTORY)
    assert directory.covered() == listed
    assert len(listed) > 2
    directory.close()


async def children() -> set[int]:
    """Returns the sorting processes of this one."""
    listed = await trio.run_process(["pgrep", "-P", str(os.getpid()), "-f", PROGRAM], capture_stdout=True, check=False)
    return {int(pid) for pid in listed.stdout.split()}


async def test_one_process_takes_many_steps_until_the_sorter_is_idle_and_another_one_comes_after_it_was_killed(
    tmp_path: Path,
) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024, sort=False)
    async with es.open_store(tmp_path, settings) as store:
        await fill_files(store)
    sorter = ChildSorter(tmp_path, tmp_path / DIRECTORY)
    await sorter.sort(1)
    (first,) = await children()
    await sorter.sort(2)
    assert await children() == {first}
    os.kill(first, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exit code -9"):
        await sorter.sort(1)
    await sorter.sort(1)
    (second,) = await children()
    assert second != first
    with pytest.raises(RuntimeError, match=r"0000000099\.events"):
        await sorter.sort(99)
    with trio.move_on_after(0.05) as cancelled:
        await sorter.prove_directory()
        await trio.sleep_forever()
    assert cancelled.cancelled_caught
    await sorter.sort(1)
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        await sorter.idle()
    assert await children() == set()


async def test_what_else_a_sorting_process_says_is_told_if_it_ends_and_hides_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024, sort=False)
    async with es.open_store(tmp_path / "data", settings) as store:
        await fill_files(store)
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'a library says something, without an end of line')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sorter = ChildSorter(tmp_path / "data", tmp_path / "data" / DIRECTORY)
    await sorter.sort(1)
    await sorter.idle()
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'no memory'); os._exit(7)")
    with pytest.raises(RuntimeError, match="exit code 7: no memory"):
        await sorter.sort(1)
    assert await children() == set()


async def test_a_corrupt_file_stops_sorting_with_a_message_until_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eventstore.store.maintenance._RETRY_SECONDS", 0.05)
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024, sort=False)
    async with es.open_store(tmp_path / "data", settings) as store, trio.open_nursery() as nursery:
        await fill_files(store)
        file = tmp_path / "data" / "events" / "0000000002.events"
        sound = file.read_bytes()
        file.write_bytes(sound[:30_000] + b"rot" + sound[30_003:])
        nursery.start_soon(store.maintenance.run)

        async def is_stopped() -> bool:
            return (await store.stats())["sort_stopped_at_file"] == 2

        await eventually(is_stopped, "sorting stops")
        stats = await store.stats()
        assert stats["sorted_files"] == 1, "later files wait"
        assert str(file) in str(stats["attention"])
        for words in ("corrupt at byte offset", "Restore the file", "eventstore verify"):
            assert words in str(stats["attention"])
        assert str(stats["attention"]) in caplog.text
        assert await store.version("order-0") == 15
        assert (await store.append("order-0", [es.NewEvent("T", bytes(2000))], es.ANY, "command-0")).duplicate
        beside = file.with_suffix(".copy")
        beside.write_bytes(sound)
        beside.rename(file)
        with trio.fail_after(60):
            await store.maintenance.wait_until_sorted()
        stats = await store.stats()
        assert (stats["sort_stopped_at_file"], stats["attention"]) == (0, None)
        assert stats["unsorted_files"] == 1
        assert [event.version async for event in store.read("order-0")] == list(range(1, 16))
        nursery.cancel_scope.cancel()


async def test_an_index_that_is_damaged_before_it_is_listed_is_rebuilt(tmp_path: Path) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024, sort=False)
    async with es.open_store(tmp_path / "data", settings) as store, trio.open_nursery() as nursery:
        await fill_files(store)
        folder = store.engine.files.folder
        sort_file(folder, 1)
        switch(folder, 1)
        store.engine.use_sorted(1)
        path = folder.derived_path(1, "index")
        offset = open_index(folder.files, path).header.columns["ids"].offset
        damaged = bytearray(path.read_bytes())
        damaged[offset] ^= 1
        path.unlink()
        path.write_bytes(damaged)
        nursery.start_soon(store.maintenance.run)
        with trio.fail_after(60):
            await store.maintenance.wait_until_sorted()
        assert store.maintenance.failures == 0
        assert [event.version async for event in store.read("order-0")] == list(range(1, 16))
        nursery.cancel_scope.cancel()


async def sorted_files(path: Path, settings: StoreSettings) -> ChunkFolder:
    """Returns the event files of a store that was filled, sorted and closed."""
    async with es.open_store(path, settings) as store:
        await fill_files(store)
        await store.maintenance.wait_until_sorted()
        return store.engine.files.folder


async def test_an_index_that_is_damaged_at_rest_is_rebuilt_when_a_reader_needs_it(tmp_path: Path) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024)
    folder = await sorted_files(tmp_path / "data", settings)
    path = folder.derived_path(1, "index")
    sound = path.read_bytes()
    offset = open_index(folder.files, path).header.columns["version"].offset
    path.write_bytes(sound[:offset] + bytes((sound[offset] ^ 1,)) + sound[offset + 1 :])
    async with es.open_store(tmp_path / "data", settings) as store:
        with pytest.raises(es.Corrupt, match="rebuilds the index"):
            await store.append("order-0", [es.NewEvent("T")], 15, "new")

        async def is_readable() -> bool:
            try:
                return [event.version async for event in store.read("order-0")] == list(range(1, 16))
            except es.Corrupt:
                return False

        await eventually(is_readable, "the index is rebuilt and readers use it")
        assert path.read_bytes() == sound
        assert (await store.stats())["attention"] is None


async def test_a_damaged_index_of_a_damaged_file_sets_attention(tmp_path: Path) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024)
    folder = await sorted_files(tmp_path / "data", settings)
    offset = open_index(folder.files, folder.derived_path(1, "index")).header.columns["version"].offset
    for path, place in (folder.derived_path(1, "index"), offset), (folder.chunk_path(1), 5000):
        raw = bytearray(path.read_bytes())
        raw[place] ^= 1
        path.write_bytes(raw)
    async with es.open_store(tmp_path / "data", settings) as store:
        with pytest.raises(es.Corrupt):
            store.engine.files.index(1).verify()

        async def is_told() -> bool:
            attention = (await store.stats())["attention"]
            return attention is not None and "could not be rebuilt" in str(attention)

        await eventually(is_told, "the operator has to restore the event file")


async def test_a_store_sorts_in_a_child_process(tmp_path: Path) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024)
    async with es.open_store(tmp_path / "data", settings) as store:
        for number in range(100):
            await store.append(f"order-{number % 7}", [es.NewEvent("T", bytes(2000))], es.ANY, f"command-{number}")
        await store.maintenance.wait_until_sorted()
        assert store.maintenance.failures == 0
        assert (await store.stats())["sorted_files"] >= 3
        again = await store.append("order-0", [es.NewEvent("T", bytes(2000))], es.ANY, "command-0")
        assert again == es.Committed("order-0", 1, 1, duplicate=True)
