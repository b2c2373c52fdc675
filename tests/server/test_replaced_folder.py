"""A server is stopped, its folder replaced by an older copy, other events are appended, and it starts again on the same port,
while clients wait for it: what follows belongs to another history.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import eventstore as es
import eventstore.domain as d
from bank import Opened
from eventstore.domain.reactions.checkpoint import FileCheckpoint
from eventstore.domain.reactions.reactor import Reactor
from tests.domain.projections.test_restored_store import Orders
from tests.domain.reactions.test_reactor_policy import nowhere
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually

DATA = {"Ordered": b"", "Noted": b"", "Opened": b'{"owner":"Ada"}'}


def append(address: str, *orders: str, type: str = "Ordered") -> None:
    with es.blocking.connect(address) as store:
        for order in orders:
            store.append(order, [es.NewEvent(type, DATA[type])], es.ANY)


class Replaced:
    """A server with the event o-1, and a copy of its folder."""

    def __init__(self, folder: Path, type: str = "Ordered") -> None:
        self._folder = folder
        with ServerThread(folder / "data") as first:
            append(first.address, "o-1", type=type)
        shutil.copytree(folder / "data", folder / "older")
        self.server = ServerThread(folder / "data")

    def replace(self, *orders: str, type: str = "Ordered") -> None:
        """Starts again with the older copy, to which these were appended."""
        self.server.stop()
        shutil.rmtree(self._folder / "data")
        with ServerThread(self._folder / "older") as other:
            append(other.address, *orders, type=type)
        shutil.copytree(self._folder / "older", self._folder / "data")
        self.server.start()


async def test_a_subscription_that_waited_for_the_server_ends(tmp_path: Path) -> None:
    replaced = Replaced(tmp_path)
    with replaced.server as server:
        append(server.address, "o-2")
        async with es.connect(server.address) as store, store.subscribe() as items:
            with anyio.fail_after(DEADLINE_SECONDS):
                while not isinstance(await anext(items), es.CaughtUp):
                    pass
                await anyio.to_thread.run_sync(replaced.replace, "o-3", "o-4")
                with pytest.raises(es.Diverged, match=r"sequence 2, but the store has another event there .*'o-3'"):
                    await anext(items)


async def test_a_blocking_subscription_ends_as_well(tmp_path: Path) -> None:
    replaced = Replaced(tmp_path)
    with replaced.server as server, es.blocking.connect(server.address) as store:
        append(server.address, "o-2")
        items = store.subscribe()
        assert [type(next(items)) for _ in range(3)] == [es.Event, es.Event, es.CaughtUp]
        await anyio.to_thread.run_sync(replaced.replace)
        with pytest.raises(es.Diverged, match="sequence 2, but the store has no such event"):
            await anyio.to_thread.run_sync(next, items)


async def test_a_subscription_goes_on_if_the_folder_is_the_same(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        append(server.address, "o-1", "o-2")
        async with es.connect(server.address) as store, store.subscribe(1) as items:
            assert [type(await anext(items)) for _ in range(2)] == [es.Event, es.CaughtUp]
            await anyio.to_thread.run_sync(server.restart)
            await anyio.to_thread.run_sync(append, server.address, "o-3")
            with anyio.fail_after(DEADLINE_SECONDS):
                item: Any = await anext(items)
            assert item.aggregate_id == "o-3"


@pytest.mark.parametrize("last", ["Ordered", "Noted"])
@pytest.mark.parametrize("begun_before", [True, False])
async def test_a_projection_that_waited_for_the_server_ends(tmp_path: Path, last: str, begun_before: bool) -> None:
    """Also where it stands at an event that it did not want, and where it had nothing delivered since it was started."""
    replaced = Replaced(tmp_path)
    with replaced.server as server:
        append(server.address, "o-2", type=last)
        caught_up = anyio.Event()

        def progressed(progress: d.Progress) -> None:
            if progress.caught_up:
                caught_up.set()

        async def replace() -> None:
            await caught_up.wait()
            await anyio.to_thread.run_sync(replaced.replace, "o-3", "o-4")

        async with es.connect(server.address) as store:
            target = d.SQLiteTarget(tmp_path / "rows.db")
            if begun_before:
                await d.project(store, Orders(), d.SQLiteTarget(tmp_path / "rows.db"), until_caught_up=True)
            with anyio.fail_after(DEADLINE_SECONDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(replace)
                    with pytest.raises(es.Diverged, match="sequence 2, but the store has another event there"):
                        await d.project(store, Orders(), target, on_progress=progressed)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as rows:
        assert ("o-3",) not in rows.execute("SELECT key FROM orders").fetchall()


async def test_reactions_that_waited_for_the_server_end(tmp_path: Path) -> None:
    """Those of a worker, which had nothing delivered since they were started."""
    app, seen = d.Domain(), list[str]()

    @app.reacts(Opened, name="note")
    async def note(event: Opened, send: d.Send) -> None:
        seen.append(send.cause.aggregate_id)

    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    replaced = Replaced(tmp_path, "Opened")
    with replaced.server as server:
        append(server.address, "o-2", type="Opened")
        async with es.connect(server.address) as store:
            assert await d.react(store, app, nowhere, checkpoint, until_caught_up=True) == 2
            reactor = Reactor(store, app, nowhere, checkpoint)

            async def replace() -> None:
                async def has_caught_up() -> bool:
                    return reactor.feed is not None and reactor.feed.caught_up

                await eventually(has_caught_up, "the reactions have caught up")
                await anyio.to_thread.run_sync(partial(replaced.replace, "o-3", "o-4", type="Opened"))

            with anyio.fail_after(DEADLINE_SECONDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(replace)
                    with pytest.raises(es.Diverged, match="sequence 2, but the store has another event there"):
                        await reactor.run(raises=True)
    assert sorted(seen) == ["o-1", "o-2"]
