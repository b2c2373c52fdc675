"""`wait_for`: what is read of a projection's table afterwards has the events that were waited for."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
import eventstore.domain as d
from bank import Balances, Deposited, Opened
from eventstore.store.projection_waits import WAITS_MAX
from tests.contract.subjects import Subject, contract
from tests.domain.projections.balances import cents
from tests.domain.runner import new_events
from tests.security.access_file import give
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

ACCOUNTS = [f"acc-{number}" for number in range(12)]
"""Of all shards, where there are several."""


async def run_projection(store: Any, path: Path) -> None:
    await d.project(store, Balances(), d.SQLiteTarget(path))


@asynccontextmanager
async def projected(subject: Subject, path: Path) -> AsyncIterator[None]:
    """Runs the projection on the store of a subject; on a client of its own if it has a server."""
    async with anyio.create_task_group() as tasks:
        if subject.embedded:
            tasks.start_soon(run_projection, subject.store, path)
            yield
            tasks.cancel_scope.cancel()
            return
        assert subject.address is not None
        async with es.connect(subject.address) as other:
            tasks.start_soon(run_projection, other, path)
            yield
            tasks.cancel_scope.cancel()


@contract
async def test_the_table_has_what_was_waited_for(subject: Subject) -> None:
    path = subject.folder / "rows.db"
    async with projected(subject, path):
        for each in ACCOUNTS:
            done = await subject.store.append(each, new_events(Opened(each), Deposited(5)), 0)
            await subject.store.wait_for("balances", done)
            assert cents(path)[each] == 5
        done = [await subject.store.append(each, new_events(Deposited(2)), es.ANY) for each in ACCOUNTS]
        await subject.store.wait_for("balances", *done)
        assert cents(path) == dict.fromkeys(ACCOUNTS, 7)
        await subject.store.append("acc-0", new_events(Deposited(1)), es.ANY)
        await subject.store.wait_for("balances", es.Unchanged("acc-0"))
        assert cents(path)["acc-0"] == 8, "what an unchanged aggregate was decided on"
        await subject.store.append("acc-1", new_events(Deposited(1)), es.ANY)
        await subject.store.wait_for("balances")
        assert cents(path)["acc-1"] == 8, "everything so far"


@contract
async def test_what_is_not_of_the_projection_is_passed_over(subject: Subject) -> None:
    path = subject.folder / "rows.db"
    async with projected(subject, path):
        await subject.store.append("acc-0", new_events(Opened("ada"), Deposited(5)), 0)
        for number in range(5):
            done = await subject.store.append("acc-0", [es.NewEvent("Noted", {"number": number})], es.ANY)
            await subject.store.wait_for("balances", done)
        assert cents(path) == {"acc-0": 5}


@contract
async def test_a_wait_begins_before_there_is_a_projector(subject: Subject) -> None:
    path, over = subject.folder / "rows.db", anyio.Event()
    done = await subject.store.append("acc-0", new_events(Opened("ada"), Deposited(5)), 0)

    async def wait() -> None:
        await subject.store.wait_for("balances", done)
        assert cents(path) == {"acc-0": 5}
        over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        async with projected(subject, path):
            await over.wait()


@contract
async def test_it_is_true_after_a_restart(subject: Subject) -> None:
    path = subject.folder / "rows.db"
    async with projected(subject, path):
        done = await subject.store.append("acc-0", new_events(Opened("ada"), Deposited(5)), 0)
        await subject.store.wait_for("balances", done)
        if not subject.embedded:
            await subject.restart()
            done = await subject.store.append("acc-0", new_events(Deposited(1)), es.ANY)
            await subject.store.wait_for("balances", done)
            assert cents(path) == {"acc-0": 6}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data") as running:
        yield running


async def test_a_table_that_was_rebuilt_meanwhile_is_not_taken_for_the_one_before(server: ServerThread, tmp_path: Path) -> None:
    path, failed = tmp_path / "rows.db", list[Exception]()

    async def run() -> None:
        try:
            async with es.connect(server.address) as store:
                await d.project(store, Balances(), d.SQLiteTarget(path))
        except es.Fenced as error:
            failed.append(error)

    async with es.connect(server.address) as store, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        done = await store.append("acc-0", new_events(Opened("ada"), Deposited(5)), 0)
        await store.wait_for("balances", done)
        connection = sqlite3.connect(path)
        connection.execute("DELETE FROM balances")
        connection.execute("UPDATE eventstore_checkpoints SET sequence = 0, identity = NULL, generation = generation - 1")
        connection.commit()
        connection.close()
        with pytest.raises(es.TimedOut):
            await store.wait_for("balances", done, timeout=0.2)
        assert len(failed) == 1, "its projector has noticed by the wait"
        nursery.start_soon(run)
        await store.wait_for("balances", done)
        assert cents(path) == {"acc-0": 5}
        nursery.cancel_scope.cancel()


async def test_of_a_projection_with_several_tables_all_have_the_events(server: ServerThread, tmp_path: Path) -> None:
    paths = [tmp_path / f"rows-{number}.db" for number in range(3)]
    async with es.connect(server.address) as store, es.connect(server.address) as other, trio.open_nursery() as nursery:
        for each, path in zip((store, store, other), paths, strict=True):
            nursery.start_soon(run_projection, each, path)
        done = await store.append("acc-0", new_events(Opened("ada")), 0)
        for path in paths:  # until it is there: before, it could not be waited for
            while not path.exists() or not await anyio.to_thread.run_sync(partial(opened, path)):
                await trio.lowlevel.checkpoint()
        for number in range(10):
            done = await store.append("acc-0", new_events(Deposited(1)), es.ANY)
            await store.wait_for("balances", done)
            assert [cents(path) for path in paths] == [{"acc-0": number + 1}] * 3
        nursery.cancel_scope.cancel()


def opened(path: Path) -> bool:
    try:
        return bool(cents(path))
    except sqlite3.OperationalError:
        return False


async def test_a_wait_that_was_given_up_is_forgotten_and_so_is_a_projector_that_has_left(
    server: ServerThread, tmp_path: Path
) -> None:
    async with es.connect(server.address) as store:
        done = await store.append("acc-0", new_events(Opened("ada")), 0)
        with pytest.raises(es.TimedOut, match=r"not answered within 0\.01 s; it changed nothing"):
            await store.wait_for("balances", done, timeout=0.01)
        async with es.connect(server.address) as gone:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_projection, gone, tmp_path / "rows.db")
                await store.wait_for("balances", done)
                nursery.cancel_scope.cancel()
        await store.version("acc-0")
        with trio.fail_after(DEADLINE_SECONDS):
            while server.ask(lambda running: dict(running.store.waits._by_name)):
                await trio.lowlevel.checkpoint()
        assert server.ask(lambda running: running.store.waits.count) == 0


async def test_waits_are_bounded(server: ServerThread) -> None:
    async with es.connect(server.address) as store:
        server.ask(lambda running: [running.store.waits.begin("others", 1, lambda _: None) for _ in range(WAITS_MAX)])
        with pytest.raises(es.Overloaded, match="10,000 wait for projections, the limit"):
            await store.wait_for("balances")


async def test_waiting_needs_to_see_figures(tmp_path: Path) -> None:
    token, blind = give(tmp_path / "data", "ann", "stats"), give(tmp_path / "data", "bob", "append")
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address, token=token) as store:
            with pytest.raises(es.TimedOut):
                await store.wait_for("balances", timeout=0.01)
        async with es.connect(server.address, token=blind) as store:
            with pytest.raises(es.PermissionDenied):
                await store.wait_for("balances", timeout=5)
            with pytest.raises(es.PermissionDenied):
                await store.tell_place("balances", 1, 1, 1)
