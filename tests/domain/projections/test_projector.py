"""Projectors: each event counts once, in batches, on embedded and remote stores."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import bank
import eventstore as es
import eventstore.domain as d
from bank import Balances, Deposited, Opened
from eventstore.domain.projections.targets.base import ParkedKey, StoredRow, TableCheckpoint
from eventstore.domain.projections.targets.sqlite import SQLiteTarget
from tests.domain.runner import new_events
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

ACCOUNTS = [f"acc-{number}" for number in range(10)]


def commits(rounds: int, offset: int = 0) -> list[es.Commit]:
    """Opens the accounts if `offset` is 0, and deposits 1 on each of them, `rounds` times."""
    opening = [es.Commit(account, new_events(Opened(account)), 0) for account in ACCOUNTS] if offset == 0 else []
    return opening + [es.Commit(account, new_events(Deposited(1)), es.ANY) for _ in range(rounds) for account in ACCOUNTS]


def rows(path: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT key, owner, cents FROM balances ORDER BY key").fetchall()
    finally:
        connection.close()


def expected(cents: int) -> list[tuple[str, str, int]]:
    return [(account, account, cents) for account in ACCOUNTS]


@pytest.mark.parametrize("events_max", [1, 7, 1_000])
async def test_all_events_become_rows(tmp_path: Path, events_max: int) -> None:
    progress: list[d.Progress] = []
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await store.append_many(commits(10))
        target = d.SQLiteTarget(path)
        assert await d.project(
            store, Balances(), target, events_max=events_max, until_caught_up=True, on_progress=progress.append
        ) == 110  # fmt: skip
    assert rows(path) == expected(10)
    assert sum(each.events for each in progress) == 110
    assert max(each.events for each in progress) <= events_max
    assert [each.caught_up for each in progress] == [False] * (len(progress) - 1) + [True]
    assert progress[-1].checkpoint == 110


async def test_it_continues_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        for place in range(4):
            await store.append_many(commits(5, place))
            await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True)
            assert rows(path) == expected(5 * (place + 1))
        assert await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True) == 210


async def test_a_table_of_another_store_is_refused_even_if_that_one_has_more_events(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await store.append_many(commits(1))
        await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True)
    async with es.open_store(tmp_path / "other") as store:
        await store.append_many(commits(2))
        with pytest.raises(es.InvalidArgument, match=r"table 'balances' was made from store .*, but this is store .*; use"):
            await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True)
    assert rows(path) == expected(1)


async def test_a_table_that_another_projector_updates_meanwhile_is_not_ahead_of_its_store(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    class Late(d.SQLiteTarget):
        def open(self, *arguments: Any, **options: Any) -> int:
            trio.from_thread.run(another)
            return super().open(*arguments, **options)

    async def another() -> None:
        await store.append_many(commits(1))
        await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True)

    async with es.open_store(tmp_path / "store") as store:
        await d.project(store, Balances(), Late(path), until_caught_up=True)
    assert rows(path) == expected(1)


async def test_events_appended_while_it_runs_become_rows(tmp_path: Path) -> None:
    path, reached = tmp_path / "rows.db", trio.Event()

    def look(progress: d.Progress) -> None:
        if progress.checkpoint == 1_010:
            reached.set()

    async with es.open_store(tmp_path / "store") as store, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: d.project(store, Balances(), d.SQLiteTarget(path), on_progress=look))
        for place in range(20):
            await store.append_many(commits(5, place))
        with trio.fail_after(DEADLINE_SECONDS):
            await reached.wait()
        nursery.cancel_scope.cancel()
    assert rows(path) == expected(100)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_it_runs_over_the_network_on_either_event_loop(tmp_path: Path, backend: str) -> None:
    async def run() -> None:
        async with es.connect(server.address) as store:
            await store.append_many(commits(30))
            assert await d.project(store, Balances(), d.SQLiteTarget(tmp_path / "rows.db"), until_caught_up=True) == 310

    with ServerThread(tmp_path / "store") as server:
        anyio.run(run, backend=backend)
    assert rows(tmp_path / "rows.db") == expected(30)


class Interrupted(Exception):
    """Simulates the death of the process at a call of the target."""


class Interrupting(SQLiteTarget):
    """A target whose process dies just before or after the nth write."""

    def __init__(self, path: Path, nth: int, late: bool) -> None:
        super().__init__(path)
        self._left, self._late = nth, late

    def write(
        self, rows: Sequence[StoredRow], deletions: Sequence[str], before: int, after: TableCheckpoint,
        parked: Sequence[ParkedKey] = (), retried: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._left -= 1
        if self._left == 0 and not self._late:
            raise Interrupted
        super().write(rows, deletions, before, after, parked, retried)
        if self._left == 0:
            raise Interrupted


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 5, 15])
async def test_each_event_counts_once_wherever_the_projector_dies(tmp_path: Path, nth: int, after: bool) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await store.append_many(commits(10))
        with pytest.raises(Interrupted):
            await d.project(store, Balances(), Interrupting(path, nth, after), events_max=7, until_caught_up=True)
        await d.project(store, Balances(), d.SQLiteTarget(path), events_max=7, until_caught_up=True)
    assert rows(path) == expected(10)


async def test_of_two_projectors_at_once_one_is_fenced(tmp_path: Path) -> None:
    path, ends, started = tmp_path / "rows.db", list[type[BaseException]](), trio.Event()

    async def run(store: Any, on_progress: Callable[[d.Progress], None]) -> None:
        try:
            await d.project(store, Balances(), d.SQLiteTarget(path), events_max=50, on_progress=on_progress)
        except es.Fenced as error:
            ends.append(type(error))
            nursery.cancel_scope.cancel()

    async with es.open_store(tmp_path / "store") as store:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(run, store, lambda _: started.set())
            place = 0
            with trio.fail_after(DEADLINE_SECONDS):
                while True:
                    await store.append_many(commits(5, place))
                    place += 1
        assert ends == [es.Fenced]
        await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True)
        last = (await store.version(ACCOUNTS[-1])) - 1
    assert rows(path)[-1][2] == last


class Failing(Balances):
    @d.folds(Deposited)
    def _(self, state: bank.Balance, event: Deposited) -> bank.Balance:
        if event.cents == 13:
            raise ValueError("unlucky")
        return Balances.apply(self, state, d.testing.stored(event)[0]) or state


async def test_a_projection_that_raises_stops_before_its_event(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await store.append("acc-1", new_events(Opened("Ada")), 0)
        await store.append("acc-1", new_events(Deposited(13)), 1)
        for _ in range(2):
            message = rf"'balances' failed at sequence 2, aggregate 'acc-1', version 2, .*: unlucky \({__file__}:\d+\)$"
            with pytest.raises(es.ProjectionFailed, match=message):
                await d.project(store, Failing(), d.SQLiteTarget(path), events_max=1, until_caught_up=True)
            assert rows(path) == [("acc-1", "Ada", 0)]
        await d.project(store, Balances(), d.SQLiteTarget(path), until_caught_up=True)
    assert rows(path) == [("acc-1", "Ada", 13)]


async def test_a_store_that_is_closed_ends_it(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with es.open_store(tmp_path / "store") as store:
            caught_up = trio.Event()

            async def run() -> None:
                with pytest.raises(es.Closed):
                    await d.project(
                        store, Balances(), d.SQLiteTarget(tmp_path / "rows.db"), on_progress=lambda _: caught_up.set()
                    )

            nursery.start_soon(run)
            with trio.fail_after(DEADLINE_SECONDS):
                await caught_up.wait()


@pytest.mark.parametrize("events_max", [0, 100_001, True])
async def test_the_size_of_a_batch_has_limits(tmp_path: Path, events_max: int) -> None:
    async with es.open_store(tmp_path / "store") as store:
        with pytest.raises(es.InvalidArgument, match="events_max"):
            await d.project(store, Balances(), d.SQLiteTarget(tmp_path / "rows.db"), events_max=events_max)


def test_opening_waits_for_another_projector_that_is_making_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE made (by)")  # not in write-ahead mode yet: switching to it does not wait
    target, opened = d.SQLiteTarget(path), list[TableCheckpoint]()
    opening = threading.Thread(target=lambda: opened.append(target.open(Balances())))
    opening.start()
    wait_until(lambda: _times_open(path) > 1 or not opening.is_alive(), "the file is open twice")
    other.execute("COMMIT")
    opening.join()
    target.close()
    other.close()
    assert opened == [(0, None)]


def _times_open(path: Path) -> int:
    return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(path) for number in os.listdir("/proc/self/fd"))
