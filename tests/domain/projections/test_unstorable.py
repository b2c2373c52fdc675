"""Events that make a row which the table cannot hold: the key is parked, or the projection stops and names the event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.model import DATA_IS_JSON, NewEvent
from tests.domain.projections.conftest import Place

WEST = timezone(timedelta(hours=-1))
GOOD: dict[str, Any] = {"number": 1, "text": "t", "amount": Decimal(1), "at": datetime(2026, 1, 1, tzinfo=UTC)}
VALUES: dict[str, dict[str, Any]] = {
    "a number of 31 digits": {"number": 10**30},
    "a text with NUL": {"text": "a\0b"},
    "a text with half a character": {"text": "\ud800"},
    "a number of 200,000 digits": {"amount": Decimal("1e200000")},
    "a time after the last year": {"at": datetime.max.replace(tzinfo=WEST)},
}
HELD = {
    ("SQLiteTarget", "a text with NUL"), ("SQLiteTarget", "a number of 200,000 digits"),
    ("PostgresTarget", "a time after the last year"),
}  # fmt: skip


@dataclass(frozen=True)
class Moved:
    to: str


class Moves(d.Projection[Any]):
    name = "moves"
    columns: ClassVar = {"number": int, "text": str, "amount": Decimal, "at": datetime}
    on_failure = "park"

    @d.folds(Moved)
    def _(self, state: Any, event: Moved) -> Any:
        return [*(state or []), event.to]

    def row(self, key: str, state: Any) -> dict[str, object]:
        return {**GOOD, **VALUES.get(state[-1], {})}


class Stopping(Moves):
    on_failure = "stop"


class OneMore(Moves):
    """Has room for everything."""

    def row(self, key: str, state: Any) -> dict[str, object]:
        return GOOD


async def put(store: Any, *moves: tuple[str, str]) -> None:
    for aggregate_id, to in moves:
        await store.append(aggregate_id, [es.NewEvent("Moved", {"to": to})], es.ANY)


async def run(store: Any, projection: d.Projection[Any], place: Place, **options: Any) -> list[d.Progress]:
    progress: list[d.Progress] = []
    await d.project(store, projection, place.target(), until_caught_up=True, on_progress=progress.append, **options)
    return progress


def states(place: Place) -> dict[str, int]:
    """How many events are in the row of each key."""
    return {key: str(state).count('"') // 2 for key, state in place.query("SELECT key, CAST(state AS text) FROM moves")}


def parked(place: Place) -> list[tuple[Any, ...]]:
    return place.query("SELECT key, sequence FROM eventstore_parked ORDER BY sequence")


@pytest.mark.parametrize("what", VALUES)
async def test_a_key_whose_row_does_not_fit_is_parked_and_the_others_go_on(place: Place, tmp_path: Any, what: str) -> None:
    held = (type(place.target()).__name__, what) in HELD
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "x"), ("b", "x"), ("b", what), ("b", "y"), ("a", "y"), ("c", what))
        progress = await run(store, Moves(), place)
        assert progress[-1].checkpoint == 6
        await put(store, ("a", "z"), ("b", "z"))
        await run(store, Moves(), place)
        if held:
            assert parked(place) == []
            return
        assert parked(place) == [("b", 3), ("c", 6)]
        assert states(place) == {"a": 3, "b": 1}
        await run(store, Moves(), place, retry_parked=True)
        assert parked(place) == [("b", 3), ("c", 6)]
        await run(store, OneMore(), place, retry_parked=True)
    assert parked(place) == []
    assert states(place) == {"a": 3, "b": 4, "c": 1}


@pytest.mark.parametrize("what", VALUES)
async def test_a_projection_that_stops_names_the_event_whose_row_does_not_fit(place: Place, tmp_path: Any, what: str) -> None:
    if (type(place.target()).__name__, what) in HELD:
        return
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "x"), ("b", "x"), ("b", what), ("a", "y"))
        with pytest.raises(es.ProjectionFailed, match="'moves' failed at sequence 3, aggregate 'b', version 2, type 'Moved'"):
            await run(store, Stopping(), place)


async def test_a_key_that_a_column_cannot_hold_is_parked_under_its_name(place: Place, tmp_path: Any) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "x"), ("a\0b", "x"), ("a", "y"), ("a\0b", "y"))
        [*_, last] = await run(store, Moves(), place)
        assert last.checkpoint == 4
        assert states(place)["a"] == 2
        await put(store, ("a\0b", "z"))
        [*_, last] = await run(store, Moves(), place, retry_parked=True)
        target = place.target()
        target.open(Moves())
        found = target.parked(["a\0b"])
        target.close()
        assert {each.sequence for each in found.values()} == ({2} if last.parked_keys else set())
        assert set(found) == ({"a\0b"} if last.parked_keys else set())
        if last.parked_keys:
            with pytest.raises(es.DomainRefused, match="1 parked keys"):
                await run(store, Stopping(), place)


async def test_a_row_whose_key_does_not_fit_stops_by_name(place: Place, tmp_path: Any) -> None:
    if type(place.target()).__name__ == "SQLiteTarget":
        return
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a\0b", "x"))
        with pytest.raises(es.ProjectionFailed, match=r"sequence 1, aggregate 'a.x00b'"):
            await run(store, Stopping(), place)


async def test_data_that_are_not_json_are_parked(place: Place, tmp_path: Any) -> None:
    poison = tuple.__new__(NewEvent, (DATA_IS_JSON, "Moved", b"\xff", None))
    raw = tuple.__new__(NewEvent, (0, "Moved", b"\xff", None))
    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "x"))
        await store.append("b", [raw], 0)
        await store.append("c", [poison], 0)
        await put(store, ("a", "y"))
        [*_, last] = await run(store, Moves(), place)
        assert last.checkpoint == 4
    assert states(place) == {"a": 2}
    assert parked(place) == [("b", 2), ("c", 3)]


async def test_an_error_that_says_what_no_text_may_hold_is_parked_all_the_same(place: Place, tmp_path: Any) -> None:
    class Raising(Moves):
        def row(self, key: str, state: Any) -> dict[str, object]:
            raise ValueError("bad \0 and \ud800")

    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "x"))
        await run(store, Raising(), place)
    assert parked(place) == [("a", 1)]


async def test_a_database_that_fails_is_named_and_nothing_is_parked(place: Place, tmp_path: Any) -> None:
    if type(place.target()).__name__ == "SQLiteTarget":
        return

    class Disconnected(Moves):
        def row(self, key: str, state: Any) -> dict[str, object]:
            others = (
                "SELECT pid FROM pg_stat_activity WHERE usename = 'tests' AND query LIKE '%moves%' AND pid <> pg_backend_pid()"
            )
            place.query(f"SELECT pg_terminate_backend(pid, 30000) FROM ({others}) AS others")
            return GOOD

    async with es.open_store(tmp_path / "store") as store:
        await put(store, ("a", "x"))
        with pytest.raises(es.ProjectionFailed, match=r"cannot use PostgreSQL: (?!the connection is closed)"):
            await run(store, Disconnected(), place)
    assert parked(place) == []
