"""Several projections share a subscription whose server is restarted, or comes back with another history."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from tests.domain.projections.test_project_all import Seen, Sums, append, running, table
from tests.server_thread import ServerThread


async def while_it_is_down(server: ServerThread, *numbers: int) -> None:
    """Appends to the store of a server that is stopped, and starts it again."""
    async with es.open_store(server.data) as store:
        await append(store, "a", "A", *numbers)
    await trio.to_thread.run_sync(server.start)


@pytest.mark.parametrize("before", [(), (1,)])
async def test_what_came_while_the_server_was_away_becomes_rows(before: tuple[int, ...], tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    tables = [(Sums(name, types), d.SQLiteTarget(path)) for name, types in (("one", ["A"]), ("two", None), ("three", ["B"]))]
    with ServerThread(tmp_path / "store") as server:
        async with es.connect(server.address) as store:
            if before:
                await append(store, "a", "A", *before)
            async with running(partial(d.project_all, store, tables, on_progress=seen.on_progress)):
                await seen.until(lambda: len(seen.caught_up) == 3)
                await trio.to_thread.run_sync(server.stop)
                await while_it_is_down(server, 5, 5)
                await seen.until(lambda: [seen.events[name] for name in ("one", "two")] == [len(before) + 2] * 2)
                await append(store, "b", "B", 7)
                await seen.until(lambda: seen.events["three"] == 1 and seen.events["two"] == len(before) + 3)
    assert table(path, "one") == {"a": (sum(before) + 10, len(before) + 2)}
    assert table(path, "two") == {**table(path, "one"), "b": (7, 1)}
    assert seen.failures == []


async def test_those_that_have_lost_their_event_are_refused_and_the_others_continue(tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    tables = [(Sums(name, [name.upper()]), d.SQLiteTarget(path)) for name in ("a", "b")]
    options: Any = {"on_progress": seen.on_progress, "on_failure": seen.on_failure}
    with ServerThread(tmp_path / "store") as server:
        async with es.connect(server.address) as store:
            await append(store, "b", "B", 1)
            async with running(partial(d.project_all, store, tables, **options)):
                await seen.until(lambda: len(seen.caught_up) == 2)
                await trio.to_thread.run_sync(server.stop)
                shutil.copytree(server.data, tmp_path / "older")
                await while_it_is_down(server, 1)
                await seen.until(lambda: seen.events["a"] == 1)
                await trio.to_thread.run_sync(server.stop)
                shutil.rmtree(server.data)
                shutil.copytree(tmp_path / "older", server.data)
                await while_it_is_down(server, 2, 2)
                await append(store, "b", "B", 2)
                await seen.until(lambda: bool(seen.failures) and seen.events["b"] == 2)
    ((name, error, again),) = seen.failures
    assert (name, type(error), again) == ("a", es.Diverged, False)
    assert table(path, "a") == {"a": (1, 1)}
    assert table(path, "b") == {"b": (3, 2)}
