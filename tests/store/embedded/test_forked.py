"""An embedded store in a child process: refused by name; the folder, its lock, its files and its threads are the parent's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.settings.store import StoreSettings
from tests.client.forks.child import Child, error_of
from tests.client.forks.test_async_client import first_step

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
EVENT = es.NewEvent("Happened", b"1")
SMALL = StoreSettings(preallocate_bytes=1024 * 1024)


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


async def test_every_call_is_refused_in_the_child_and_the_parent_goes_on(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "data", SMALL) as store:
        await store.append("a", [EVENT], 0)

        def asks() -> list[str]:
            calls = (
                lambda: store.version("a"), lambda: store.append("a", [EVENT], 1), lambda: store.find_command("a", "c"),
                lambda: store.append_many([es.Commit("a", [EVENT], 1)]), lambda: anext(store.read("a")),
                lambda: anext(store.read_all()), lambda: anext(store.subscribe()), store.aggregates, store.stats,
            )  # fmt: skip
            return [error_of(lambda each=each: first_step(each())) for each in calls]  # type: ignore[misc]

        answers = await trio.to_thread.run_sync(Child(asks).result)
        assert isinstance(answers, list), answers
        for each in answers:
            assert each.startswith(f"Closed: the store belongs to process {os.getpid()}, which this one "), each
        assert (await store.append("a", [EVENT], 1)).version == 2
        assert [event.version async for event in store.read("a")] == [1, 2]


async def test_a_child_that_leaves_the_store_touches_no_file_and_keeps_no_lock(tmp_path: Path) -> None:
    """In the copy of the event loop, with an append under way: its outcome is one of the parent. Nothing is sorted or measured:
    a child that leaves while that is done on a thread waits for ever, for a thread that only the parent has.
    """
    folder, appended = tmp_path / "data", list[Any]()
    result, told = os.pipe()

    async def append(store: es.EmbeddedStore) -> None:
        try:
            appended.append((await store.append("a", [EVENT], 1)).version)
        except es.Closed as error:
            appended.append(str(error))

    child = None
    try:
        async with es.open_store(folder, replace(SMALL, sort=False)) as store:
            await store.append("a", [EVENT], 0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, store)
                await trio.lowlevel.checkpoint()
                assert not appended
                child = os.fork()
                if child != 0:
                    before = content(folder)
                    assert os.waitpid(child, 0) == (child, 0)  # noqa: ASYNC222 # or the child takes what is for this one
                    after = content(folder)
        if child == 0:
            os.write(told, appended[0].encode())
            os._exit(0)
    finally:
        if child == 0:
            os._exit(1)
    os.close(told)
    assert os.read(result, 65536).startswith(f"the store belongs to process {os.getpid()}, which".encode())
    os.close(result)
    assert appended == [2]
    written = {name for name in before if before[name] != after.get(name)}
    assert written <= {name for name in before if name.endswith(".events")}  # by the thread of the parent
    async with es.open_store(folder, SMALL) as store:
        assert await store.version("a") == 2


async def test_a_child_that_lives_on_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    go, gone = os.pipe()
    async with es.open_store(tmp_path / "data", SMALL) as store:
        await store.append("a", [EVENT], 0)
        lock = store.opened.lock._fd  # type: ignore[attr-defined] # of a real file

        def lives_on() -> str:
            os.read(go, 1)
            return error_of(lambda: os.fstat(lock))

        child = Child(lives_on)
    async with es.open_store(tmp_path / "data", SMALL) as store:
        assert await store.version("a") == 1
    os.write(gone, b"1")
    assert (await trio.to_thread.run_sync(child.result)).startswith("OSError")
