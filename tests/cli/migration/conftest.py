"""A PostgreSQL for the module, and a database of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.domain import postgresql


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    if (reason := postgresql.why_not()) is not None:
        pytest.skip(reason)
    with postgresql.running_server() as address:
        yield address


_numbers = count(1)


@pytest.fixture
def database(postgres_server: str) -> Iterator[Any]:
    """A connection to an empty database, whose address is `address`."""
    import psycopg

    name = f"source{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with psycopg.connect(postgres_server.rpartition("/")[0] + f"/{name}", autocommit=True) as connection:
        yield connection


@pytest.fixture
def address(database: Any, postgres_server: str) -> str:
    return f"{postgres_server.rpartition('/')[0]}/{database.info.dbname}"
