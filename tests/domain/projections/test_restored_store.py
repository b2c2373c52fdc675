"""A table whose checkpoint stands at an event that the store does not have is never continued."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.event_identity import event_identity


class Orders(d.Projection[int]):
    name = "orders"
    columns: ClassVar = {"events": int}
    types = ("Ordered",)

    def apply(self, state: int | None, event: es.Event) -> int:
        return (state or 0) + 1

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"events": state}


def run(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


async def projected(store: Any, path: Path) -> int:
    return await d.project(store, Orders(), d.SQLiteTarget(path), until_caught_up=True)


async def append(store: Any, *orders: str, type: str = "Ordered") -> None:
    for order in orders:
        await store.append(order, [es.NewEvent(type)], es.ANY)


async def restored(folder: Path, *, last: str = "Ordered") -> Path:
    """Returns a store that was restored from an older copy after a table was made of it."""
    async with es.open_store(folder / "store") as store:
        await append(store, "o-1")
    shutil.copytree(folder / "store", folder / "older")
    async with es.open_store(folder / "store") as store:
        await append(store, "o-2", type=last)
        assert await projected(store, folder / "rows.db") == 2
    return folder / "older"


@pytest.mark.parametrize("last", ["Ordered", "Noted"])
async def test_a_restored_store_that_has_overtaken_the_table_is_refused(tmp_path: Path, last: str) -> None:
    """Also where the checkpoint stands at an event that the projection did not want."""
    async with es.open_store(await restored(tmp_path, last=last)) as store:
        with pytest.raises(es.Diverged, match=r"table 'orders' stands at the event of sequence 2, but the store has no such"):
            await projected(store, tmp_path / "rows.db")
        await append(store, "o-3", "o-4")
        for _ in range(2):
            with pytest.raises(es.Diverged, match=r"another event there \('Ordered' of 'o-3'\).*rebuild the table") as caught:
                await projected(store, tmp_path / "rows.db")
        assert caught.value.fields["sequence"] == 2
    assert ("o-3",) not in run(tmp_path / "rows.db", "SELECT key FROM orders")


async def test_a_table_without_an_identity_goes_on_and_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with es.open_store(tmp_path / "store") as store:
        await append(store, "o-1", "o-2")
        await projected(store, path)
        for column in ("identity", "generation", "version"):
            run(path, f"ALTER TABLE eventstore_checkpoints DROP COLUMN {column}")
        assert await projected(store, path) == 2
        await append(store, "o-1")
        assert await projected(store, path) == 3
        [last] = [event async for event in store.read_all(2)]
    assert run(path, "SELECT key, events FROM orders") == [("o-1", 2), ("o-2", 1)]
    assert run(path, "SELECT sequence, identity FROM eventstore_checkpoints") == [(3, event_identity(last))]


async def test_a_table_of_before_that_is_ahead_of_the_store_is_refused_as_it_was(tmp_path: Path) -> None:
    older = await restored(tmp_path)
    run(tmp_path / "rows.db", "UPDATE eventstore_checkpoints SET identity = NULL")
    async with es.open_store(older) as store:
        with pytest.raises(es.InvalidArgument, match="is at sequence 2, but the store ends at 1"):
            await projected(store, tmp_path / "rows.db")
