"""A projection that parks: one key whose events cannot be folded does not stop the others."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections import parking
from tests.raising import NoText, throw


class Sums(d.Projection[int]):
    name = "sums"
    columns: ClassVar = {"cents": int}
    on_failure = "park"

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: es.Event) -> int | None:
        data: Any = event.json()
        return None if data == "gone" else state + data["cents"]

    def row(self, key: str, state: int) -> dict[str, object]:
        if state < 0:
            raise ValueError("in debt")
        return {"cents": state}


class Mended(Sums):
    """Takes text for numbers, and debts."""

    def apply(self, state: int, event: es.Event) -> int | None:
        data: Any = event.json()
        return None if data == "gone" else state + int(data["cents"])

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"cents": state}


class Stopping(Sums):
    on_failure = "stop"


class ByCents(Sums):
    def key(self, event: es.Event) -> str:
        data: Any = event.json()
        return f"k-{data['cents'] % 2}"


def look(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def rows(path: Path) -> dict[str, int]:
    return dict(look(path, "SELECT key, cents FROM sums"))


def parked(path: Path) -> list[tuple[Any, ...]]:
    return look(path, "SELECT key, sequence FROM eventstore_parked ORDER BY key")


async def put(store: Any, *values: tuple[str, object]) -> None:
    for key, cents in values:
        await store.append(key, [es.NewEvent("Paid", cents if cents == "gone" else {"cents": cents})], es.ANY)


async def run(store: Any, projection: d.Projection[int], path: Path, **options: Any) -> list[d.Progress]:
    progress: list[d.Progress] = []
    target = d.SQLiteTarget(path)
    await d.project(store, projection, target, until_caught_up=True, on_progress=progress.append, **options)
    return progress


@pytest.mark.parametrize("events_max", [1, 3, 1_000])
async def test_a_parked_key_keeps_its_row_and_the_others_go_on(tmp_path: Path, events_max: int) -> None:
    """Wherever the batches end: the row is that of before the event that failed."""
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", 1), ("b", 2), ("a", 10), ("a", "x"), ("a", 100), ("b", 3), ("c", -1))
        progress = await run(store, Sums(), path, events_max=events_max)
        assert rows(path) == {"a": 11, "b": 5}
        assert parked(path) == [("a", 4), ("c", 7)]
        [first, *_] = [each for done in progress for each in done.parked]
        assert (first.key, first.sequence) == ("a", 4)
        assert first.error.startswith(
            "projection 'sums' failed at sequence 4, aggregate 'a', version 3, type 'Paid': TypeError"
        )
        assert progress[-1].parked_keys == 2
        await put(store, ("a", 1_000), ("b", 4))
        assert (await run(store, Sums(), path))[-1].parked_keys == 2
    assert rows(path) == {"a": 11, "b": 9}
    assert parked(path) == [("a", 4), ("c", 7)]


class Raising(Sums):
    error: BaseException

    def apply(self, state: int, event: es.Event) -> int | None:
        return throw(self.error) if event.aggregate_id == "folds" else super().apply(state, event)

    def row(self, key: str, state: int) -> dict[str, object]:
        return throw(self.error) if key == "rows" else super().row(key, state)


class RaisingStopping(Raising):
    on_failure = "stop"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), NoText(None)], ids=lambda each: type(each).__name__)
async def test_whatever_a_projection_raises_parks_the_key_or_stops_it(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "rows.db"
    going_on, stopping = Raising(), RaisingStopping()
    going_on.error = stopping.error = error
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("folds", 1), ("a", 2), ("rows", 10))
        await run(store, going_on, path)
        assert rows(path) == {"a": 2}
        assert parked(path) == [("folds", 1), ("rows", 3)]
        with pytest.raises(es.ProjectionFailed, match=f"at sequence 1, .*: {type(error).__name__}: "):
            await run(store, stopping, tmp_path / "others.db")
        going_on.error = KeyboardInterrupt()
        with pytest.raises(BaseExceptionGroup) as interrupted:
            await run(store, going_on, tmp_path / "interrupted.db")
        assert interrupted.group_contains(KeyboardInterrupt)
    assert parked(tmp_path / "interrupted.db") == []


@pytest.mark.parametrize("at_once", [1, 1_000])
async def test_a_retried_key_gets_all_that_it_skipped(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(parking, "_EVENTS_AT_ONCE", at_once)
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", 1), ("a", "20"), ("a", 300), ("b", "worse"), ("c", -7), ("d", "4"), ("d", "gone"))
        await run(store, Sums(), path)
        await run(store, Sums(), path, retry_parked=True)
        assert rows(path) == {"a": 1}
        assert [key for key, _ in parked(path)] == ["a", "b", "c", "d"]
        progress = await run(store, Mended(), path, retry_parked=True)
        assert rows(path) == {"a": 321, "c": -7}
        assert parked(path) == [("b", 4)]
        assert progress[-1].parked_keys == 1
        await put(store, ("a", 1), ("b", 1), ("d", 5))
        await run(store, Mended(), path)
    assert rows(path) == {"a": 322, "c": -7, "d": 5}


async def test_a_retry_fences_a_projector_that_may_be_skipping_the_key(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "1"))
        await run(store, Sums(), path)
        live = d.SQLiteTarget(path)
        checkpoint = live.open(Sums())
        assert set(live.parked(["a", "b"])) == {"a"}
        await run(store, Mended(), path, retry_parked=True)
        with pytest.raises(es.Fenced):
            live.write([], [], checkpoint.sequence, checkpoint)
        live.close()


async def test_parked_keys_are_not_passed_over_by_a_projection_that_stops(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", 1), ("a", "x"))
        await run(store, Sums(), path)
        with pytest.raises(es.DomainRefused, match="'sums' has 1 parked keys, such as 'a', but declares on_failure = 'stop'"):
            await run(store, Stopping(), path)


async def test_keys_that_were_parked_in_a_table_made_anew_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", 1), ("a", "20"))
        await run(store, Sums(), path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("DROP TABLE sums")
            connection.execute("DELETE FROM eventstore_checkpoints")
        await run(store, Mended(), path)
    assert rows(path) == {"a": 21}
    assert parked(path) == []


async def test_what_cannot_be_parked_stops_the_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", 1), ("a", "x"), ("b", "x"))
        with pytest.raises(es.ProjectionFailed, match="sequence 2"):  # the key is unknown
            await run(store, ByCents(), tmp_path / "keys.db")
        monkeypatch.setattr(parking, "PARKED_MAX", 1)
        with pytest.raises(es.ProjectionFailed, match="sequence 2"):
            await run(store, Sums(), tmp_path / "rows.db")
        assert parked(tmp_path / "rows.db") == []
