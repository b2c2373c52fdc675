"""A projection counts each event once while shards are split, with its checkpoints in SQLite or PostgreSQL."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore import ANY, Commit, NewEvent, blocking
from tests.cluster.led_shards import LedShards
from tests.cluster.test_projecting import Totals, run
from tests.waiting import DEADLINE_SECONDS, wait_until

IDS = [f"a-{number}" for number in range(60)]


class PerAggregate(d.Projection[int]):
    """Counts the events of each aggregate; fails on one that is not the next."""

    name = "totals"
    columns: ClassVar = {"events": int}

    def key(self, event: es.Event) -> str:
        return event.aggregate_id

    def apply(self, state: int | None, event: es.Event) -> int:
        if event.version != (state or 0) + 1:
            raise ValueError(f"version {event.version} after {state}")
        return event.version

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"events": state}


def append(address: str, count: int, seed: int, data: bytes = b"1") -> None:
    chance = random.Random(seed)
    with blocking.connect(address) as store:
        outcomes = store.append_many(Commit(chance.choice(IDS), [NewEvent("Happened", data)], ANY) for _ in range(count))
    assert {each.__class__ for each in outcomes} == {es.Committed}


def stored(address: str) -> dict[str, int]:
    with blocking.connect(address) as store:
        return Counter(event.aggregate_id for event in store.read_all())


def rows(path: Path) -> dict[str, int]:
    return dict(run(path, "SELECT key, events FROM totals"))


async def bring_up(address: str, path: Path, projection: d.Projection[Any], **options: Any) -> int:
    async with es.connect(address) as store:
        return await d.project(store, projection, d.SQLiteTarget(path), until_caught_up=True, **options)


@pytest.mark.parametrize(
    ("shards", "restarts"),
    [(2, False), (1, True), pytest.param(1, False, marks=pytest.mark.long), pytest.param(2, True, marks=pytest.mark.long)],
)
def test_a_table_that_was_left_before_splits_is_brought_up_after_them(tmp_path: Path, shards: int, restarts: bool) -> None:
    path = tmp_path / "rows.db"
    with LedShards(tmp_path, shards) as cluster:
        append(cluster.address, 300, 1)
        trio.run(bring_up, cluster.address, path, PerAggregate())
        append(cluster.address, 300, 2)
        for parent in (0, shards, 0):
            cluster.split(parent, restarts=restarts)
            append(cluster.address, 50, parent)
        trio.run(bring_up, cluster.address, path, PerAggregate())
        assert rows(path) == stored(cluster.address)
        cluster.split(0)
        append(cluster.address, 50, 9)
        trio.run(bring_up, cluster.address, path, PerAggregate())
        assert rows(path) == stored(cluster.address)
        names = [name for (name,) in run(path, "SELECT projection FROM eventstore_checkpoints")]
        assert sorted(names) == [f"totals@{number}" for number in range(shards + 4)]


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_projector_goes_on_through_splits(tmp_path: Path, shards: int) -> None:
    path = tmp_path / "rows.db"

    async def main(cluster: LedShards) -> None:
        async with es.connect(cluster.address) as store, trio.open_nursery() as nursery:

            async def follow() -> None:
                await d.project(store, PerAggregate(), d.SQLiteTarget(path), events_max=50)

            await trio.to_thread.run_sync(append, cluster.address, 500, 1)
            nursery.start_soon(follow)
            for number in range(4):
                await trio.to_thread.run_sync(cluster.split, number % 2)
                await trio.to_thread.run_sync(append, cluster.address, 200, number)
            expected = await trio.to_thread.run_sync(stored, cluster.address)
            await trio.to_thread.run_sync(wait_until, lambda: rows_if_any(path) == expected, "each event counts once")
            nursery.cancel_scope.cancel()

    with LedShards(tmp_path, shards) as cluster:
        trio.run(main, cluster)


class Others(PerAggregate):
    name = "others"


def test_several_projections_in_one_process_go_on_through_splits(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    async def main(cluster: LedShards) -> None:
        async with es.connect(cluster.address) as store, trio.open_nursery() as nursery:

            async def follow() -> None:
                tables = [(each, d.SQLiteTarget(path)) for each in (PerAggregate(), Others())]
                await d.project_all(store, tables, events_max=50)

            await trio.to_thread.run_sync(append, cluster.address, 500, 1)
            nursery.start_soon(follow)
            for number in range(3):
                await trio.to_thread.run_sync(cluster.split, number % 2)
                await trio.to_thread.run_sync(append, cluster.address, 200, number)
            expected = await trio.to_thread.run_sync(stored, cluster.address)
            for name in ("totals", "others"):
                same = partial(lambda name: rows_if_any(path, name) == expected, name)
                await trio.to_thread.run_sync(wait_until, same, f"each event counts once in {name}")
            nursery.cancel_scope.cancel()
        async with es.connect(cluster.address) as store:
            await trio.to_thread.run_sync(append, cluster.address, 20, 9)
            for projection in (PerAggregate(), Others()):
                await d.project(store, projection, d.SQLiteTarget(path), until_caught_up=True)
                expected = await trio.to_thread.run_sync(stored, cluster.address)
                assert rows_if_any(path, projection.name) == expected, "it moves to a process of its own"

    with LedShards(tmp_path, 2) as cluster:
        trio.run(main, cluster)


def rows_if_any(path: Path, name: str = "totals") -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        try:
            return dict(connection.execute(f"SELECT key, events FROM {name}").fetchall())
        except sqlite3.OperationalError:  # not created yet
            return {}


def test_keys_that_were_parked_before_a_split_are_folded_once_when_they_are_retried(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    class Poisoned(Totals):
        poison: ClassVar = True

        def apply(self, state: int | None, event: es.Event) -> int:
            if event.data == b"poison" and self.poison:
                raise ValueError("poison")
            return (state or 0) + 1

    with LedShards(tmp_path, 1) as cluster:
        append(cluster.address, 100, 1)
        append(cluster.address, 3, 2, b"poison")
        append(cluster.address, 100, 3)
        trio.run(bring_up, cluster.address, path, Poisoned())
        for parent in (0, 0):
            cluster.split(parent)
            append(cluster.address, 60, 5)
            trio.run(bring_up, cluster.address, path, Poisoned())
        assert {key for (key,) in run(path, "SELECT key FROM eventstore_parked")} == {"Happened"}
        assert rows(path) == {"Happened": 100}
        Poisoned.poison = False

        async def retry() -> None:
            await bring_up(cluster.address, path, Poisoned(), retry_parked=True)

        trio.run(retry)
        assert rows(path) == {"Happened": sum(stored(cluster.address).values())}


async def waits_at(cluster: LedShards, shard: int, count: int) -> None:
    """Returns once so many calls wait at a shard, more than none."""
    assert count
    with trio.fail_after(DEADLINE_SECONDS):
        while cluster.ask(shard, lambda server: server.store.waits.count) != count:
            await trio.lowlevel.checkpoint()


async def test_a_wait_under_way_at_a_split_ends_once_the_shard_that_has_the_aggregate_by_then_is_folded(tmp_path: Path) -> None:
    path, ended = tmp_path / "rows.db", list[str]()
    with LedShards(tmp_path, 1) as cluster:
        async with es.connect(cluster.address) as store, es.connect(cluster.address) as other, trio.open_nursery() as nursery:
            done = [await store.append(each, [NewEvent("Happened", b"1")], ANY) for each in IDS]

            async def wait(each: es.Committed) -> None:
                await store.wait_for("totals", each)
                assert rows(path)[each.aggregate_id] == 1
                ended.append(each.aggregate_id)

            async with trio.open_nursery() as waiting:
                for each in done:
                    waiting.start_soon(wait, each)
                await waits_at(cluster, 0, len(done))
                new = await trio.to_thread.run_sync(cluster.split, 0)
                await waits_at(cluster, new, sum(cluster.owner(each) == new for each in IDS))
                assert ended == []
                nursery.start_soon(lambda: d.project(other, PerAggregate(), d.SQLiteTarget(path)))
            assert sorted(ended) == sorted(IDS)
            nursery.cancel_scope.cancel()
