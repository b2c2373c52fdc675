"""A table of PostgreSQL is rebuilt in place: everything around its rows stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import psycopg
import pytest

from eventstore.domain.projections.projection import Projection, Row
from eventstore.domain.projections.targets.base import TableCheckpoint
from eventstore.domain.projections.targets.postgres import PostgresTarget
from eventstore.errors import DomainRefused, Fenced, FolderRefused, ProjectionFailed
from eventstore.model import Event
from pyspark_eventstore.jobs.rebuilt_table import RebuiltTable
from tests.domain import postgresql

STORE = "00000000-0000-0000-0000-000000000001"


class Sums(Projection[int]):
    name = "sums"
    columns: ClassVar = {"cents": int}

    def apply(self, state: int | None, event: Event) -> int:
        return (state or 0) + 1

    def row(self, key: str, state: int) -> Row:
        return {"cents": state}


class Next(Sums):
    version = 2


class Wider(Sums):
    columns: ClassVar = {"cents": int, "owner": str}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    with postgresql.running_server() as address:
        yield address


@pytest.fixture
def database(server: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection to the database, with the table at sequence 2, as a live projector left it."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        live = PostgresTarget(server)
        live.open(Sums(), store=STORE)
        live.write([("a", 1, "1"), ("b", 2, "2")], [], 0, TableCheckpoint(2, "ab"))
        live.close()
        yield connection


def rows(connection: psycopg.Connection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT key, cents, state::text FROM sums ORDER BY key").fetchall()


def rebuilt(server: str, projection: Projection[Any], new: list[tuple[object, ...]], upto: TableCheckpoint) -> None:
    table = RebuiltTable(projection, server)
    table.check(replace=True)
    assert table.write(new, {"sums": (STORE, upto)}) == len(new)


def test_beside_the_served_table_another_version_is_built_which_takes_over(
    server: str, database: psycopg.Connection[tuple[Any, ...]]
) -> None:  # fmt: skip
    with pytest.raises(DomainRefused, match="version 1 is served already"):
        RebuiltTable(Sums(), server, beside=True).check(replace=False)
    table = RebuiltTable(Next(), server, beside=True)
    table.check(replace=False)
    assert table.write([("b", 20, "20"), ("c", 30, "30")], {table.name: (STORE, TableCheckpoint(3, "cd"))}) == 2
    assert rows(database) == [("a", 1, "1"), ("b", 2, "2")]
    target = PostgresTarget(server)
    found = target.difference(Next(), "sums", "sums:2")
    assert found.counts == {"only in sums": 1, "changed: cents": 1, "only in sums:2": 1}
    taken = target.take_over(Next(), 0)
    assert taken is not None
    assert (taken.version, taken.sequence, taken.aside) == (2, 3, "sums:1")
    assert rows(database) == [("b", 20, "20"), ("c", 30, "30")]
    live = PostgresTarget(server)
    assert live.open(Next(), store=STORE).sequence == 3
    live.close()


def test_grants_indexes_and_views_stay(server: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader")
    database.execute("GRANT SELECT ON sums TO reader")
    database.execute("CREATE INDEX by_cents ON sums (cents)")
    database.execute("CREATE VIEW rich AS SELECT key FROM sums WHERE cents > 1")
    [place_of_b] = database.execute("SELECT ctid FROM sums WHERE key = 'b'").fetchall()
    rebuilt(server, Sums(), [("b", 2, "2"), ("c", 3, "3"), ("d", None, "4")], TableCheckpoint(3, "cd"))
    assert rows(database) == [("b", 2, "2"), ("c", 3, "3"), ("d", None, "4")]
    assert database.execute("SELECT has_table_privilege('reader', 'sums', 'SELECT')").fetchall() == [(True,)]
    assert ("by_cents",) in database.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'sums'").fetchall()
    assert database.execute("SELECT key FROM rich ORDER BY key").fetchall() == [("b",), ("c",)]
    assert database.execute("SELECT ctid FROM sums WHERE key = 'b'").fetchall() == [place_of_b], "the same row was replaced"
    assert database.execute("SELECT sequence, identity, store FROM eventstore_checkpoints").fetchall() == [(3, "cd", STORE)]


def test_a_live_projector_at_the_same_sequence_is_fenced(
    server: str, database: psycopg.Connection[tuple[Any, ...]]
) -> None:  # fmt: skip
    live = PostgresTarget(server)
    assert live.open(Sums()) == (2, "ab")
    rebuilt(server, Next(), [("a", 10, "10")], TableCheckpoint(2, "ab"))
    with pytest.raises(Fenced, match="or its table was rebuilt"):
        live.write([("a", 2, "2")], [], 2, TableCheckpoint(3, "cd"))
    live.close()
    assert rows(database) == [("a", 10, "10")]
    with pytest.raises(DomainRefused, match="'sums' was made by version 2 of the projection, but the code declares version 1"):
        live.open(Sums())
    live.close()
    assert live.open(Next()) == (2, "ab")
    live.close()


def test_what_cannot_be_done_is_refused_before_the_work(
    server: str, database: psycopg.Connection[tuple[Any, ...]]
) -> None:  # fmt: skip
    with pytest.raises(FolderRefused, match="table sums: exists; use --replace"):
        RebuiltTable(Sums(), server).check(replace=False)
    with pytest.raises(DomainRefused, match=r"the projection declares .*owner"):
        RebuiltTable(Wider(), server).check(replace=True)
    database.execute("DROP ROLE IF EXISTS other")
    database.execute("CREATE ROLE other LOGIN PASSWORD 'other'")
    database.execute("GRANT ALL ON SCHEMA public TO other")
    database.execute("GRANT ALL ON eventstore_checkpoints TO other")
    database.execute("GRANT SELECT, INSERT, UPDATE ON sums TO other")
    where = server.split("@", 1)[1]
    with pytest.raises(ProjectionFailed, match="permission denied for table sums"):
        RebuiltTable(Sums(), f"postgresql://other:other@{where}").check(replace=True)
    database.execute("GRANT DELETE ON sums TO other")
    RebuiltTable(Sums(), f"postgresql://other:other@{where}").check(replace=True)
    assert rows(database) == [("a", 1, "1"), ("b", 2, "2")]
    assert database.execute("SELECT sequence, identity FROM eventstore_checkpoints").fetchall() == [(2, "ab")]
    database.execute("DROP OWNED BY other")


def test_a_new_table_that_fails_leaves_nothing(server: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    database.execute("DROP TABLE sums, eventstore_checkpoints")
    table = RebuiltTable(Sums(), server)
    table.check(replace=False)
    with pytest.raises(ProjectionFailed, match="invalid input syntax"):
        table.write([("a", "many", "1")], {"sums": (STORE, TableCheckpoint(1, "ab"))})
    with pytest.raises(ProjectionFailed, match="could not create unique"):
        table.write([("a", 1, "1"), ("a", 2, "2")], {"sums": (STORE, TableCheckpoint(1, "ab"))})
    assert database.execute("SELECT to_regclass('sums'), to_regclass('eventstore_checkpoints')").fetchall() == [(None, None)]
    table.write([("a", 1, "1")], {"sums": (STORE, TableCheckpoint(1, "ab"))})
    assert rows(database) == [("a", 1, "1")]


def test_rows_that_other_tables_reference_stay_or_are_named(server: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, account text REFERENCES sums, other text REFERENCES sums)")
    database.execute("INSERT INTO notes VALUES (1, 'a', NULL), (2, 'a', 'b'), (3, NULL, NULL)")
    rebuilt(server, Sums(), [("a", 10, "10"), ("b", 2, "2"), ("c", 3, "3")], TableCheckpoint(3, "cd"))
    assert rows(database) == [("a", 10, "10"), ("b", 2, "2"), ("c", 3, "3")]

    with pytest.raises(ProjectionFailed) as failed:
        rebuilt(server, Sums(), [("c", 3, "3")], TableCheckpoint(4, "ef"))
    assert failed.value.message == (
        "projection 'sums' cannot replace its table: rows that the rebuild does not have are referenced, 'a' by notes.account "
        "(notes_account_fkey), 'b' by notes.other (notes_other_fkey); nothing was changed. Change what references them, or "
        "declare the foreign keys ON DELETE CASCADE or SET NULL, and rebuild again"
    )
    assert failed.value.fields["keys"] == 2
    assert rows(database) == [("a", 10, "10"), ("b", 2, "2"), ("c", 3, "3")]
    assert database.execute("SELECT sequence, identity FROM eventstore_checkpoints").fetchall() == [(3, "cd")]
    database.execute("UPDATE notes SET account = NULL, other = NULL")
    rebuilt(server, Sums(), [("c", 3, "3")], TableCheckpoint(4, "ef"))
    assert rows(database) == [("c", 3, "3")]


def test_a_reference_to_another_column_is_judged_by_the_result(
    server: str, database: psycopg.Connection[tuple[Any, ...]]
) -> None:  # fmt: skip
    """The row with a referenced number is another one afterwards, which a deferrable foreign key allows."""
    database.execute("ALTER TABLE sums ADD UNIQUE (cents)")
    database.execute("CREATE TABLE notes (cents bigint REFERENCES sums (cents) DEFERRABLE)")
    database.execute("INSERT INTO notes VALUES (1)")
    rebuilt(server, Sums(), [("z", 1, "1")], TableCheckpoint(3, "cd"))
    assert rows(database) == [("z", 1, "1")]
    with pytest.raises(
        ProjectionFailed, match=r'Key \(cents\)=\(1\) is still referenced from table "notes".*nothing was changed'
    ):
        rebuilt(server, Sums(), [("z", 2, "2")], TableCheckpoint(4, "ef"))
    assert rows(database) == [("z", 1, "1")]
