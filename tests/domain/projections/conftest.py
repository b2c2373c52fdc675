"""The databases that tests of projections write to: SQLite and a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eventstore.domain as d
from eventstore.domain.projections.targets.base import Target
from tests.domain import postgresql

Query = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Place:
    """Creates targets in the same database, and reads it."""

    target: Callable[[], Target]
    query: Query
    change: Callable[[str], object]
    tables: Callable[[], list[str]]
    address: str
    """As `target_at` takes it."""


@pytest.fixture(scope="session")
def postgresql_address() -> Iterator[str]:
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    with postgresql.running_server() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        path = tmp_path / "rows.db"

        def look(query: str) -> list[tuple[Any, ...]]:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                return connection.execute(query).fetchall()
            finally:
                connection.close()

        def tables() -> list[str]:
            found = look("SELECT name FROM sqlite_schema WHERE type = 'table'") if path.exists() else []
            return sorted(name for (name,) in found)

        yield Place(lambda: d.target_at(f"sqlite:{path}"), look, look, tables, f"sqlite:{path}")
        return
    address: str = request.getfixturevalue("postgresql_address")
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        schema = f"test_{tmp_path.name}".replace("-", "_").lower()[:60]
        connection.execute(f'CREATE SCHEMA "{schema}"')
        connection.execute(f'SET search_path TO "{schema}"')
        own = f"{address}?options=-csearch_path%3D{schema}"
        yield Place(
            lambda: d.target_at(own),
            lambda query: connection.execute(query).fetchall(),
            connection.execute,
            lambda: [
                name
                for (name,) in connection.execute(
                    "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename", (schema,)
                )
            ],
            own,
        )
