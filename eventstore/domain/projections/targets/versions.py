"""The tables of several versions of a projection, in one database.

The table that is called as the projection is **served**: it is what readers see. The table of any other version is called
`NAME:VERSION`, which no projection can be called, and so is its checkpoint. `take_over` exchanges names: the served table goes
aside, the other takes its place, in one transaction. So there is a whole table under the name at every moment, and nothing to
repair after a crash: either all names were exchanged, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from eventstore.domain.projections.difference import TableDifference
from eventstore.domain.projections.projection import CHECKPOINTS, KEPT, PARKED, Projection
from eventstore.domain.projections.targets.base import Target, new_generation
from eventstore.domain.projections.targets.inheriting import Execute
from eventstore.errors import DomainRefused

_NAME_MAX: Final = 63  # of PostgreSQL, which cuts off the rest
ROWS_OF: Final = "(projection = ? OR substr(projection, 1, ?) = ?)"
"""The condition for all checkpoints of a table: see `rows_of`."""


class Database(NamedTuple):
    """A transaction that is open. `exchange`: gives the served table the second name, and the table of the third name its own.
    `drop`: drops a table, if there is one.
    """

    execute: Execute
    exists: Callable[[str], bool]
    exchange: Callable[[str, str, str], None]
    drop: Callable[[str], None]


class VersionedTarget(Target, Protocol):
    """A target that may have tables of several versions of a projection. It need not be open for its methods, which use a
    connection of their own; only for `drop_expired` it is.
    """

    def beside(self, version: int) -> VersionedTarget:
        """Returns the table of a version that is not served."""

    def served(self, projection: Projection[Any]) -> int | None:
        """See `served_version`."""

    def take_over(self, projection: Projection[Any], kept_until: int) -> TakenOver | None:
        """Exchanges the tables in one transaction: see `take_over`. What readers have beside the table goes with the name:
        views, and in PostgreSQL grants. None: not now; nothing was changed.

        Raises:
            DomainRefused: something refers to the table that cannot go with its name.
        """

    def drop_expired(self, projection: Projection[Any], now: int) -> int | None:
        """See `drop_expired`, for the target that is open. A table that cannot be dropped is named by the log, and stays."""

    def difference(self, projection: Projection[Any], before: str, after: str) -> TableDifference:
        """Compares two tables, as they are at one moment. Raises InvalidArgument: there is no such table."""


class TakenOver(NamedTuple):
    """`version` is served now, up to `sequence` (over several shards, the sum of theirs); the table of `before` is `aside`."""

    version: int
    sequence: int
    before: int
    aside: str


def table_of(name: str, version: int) -> str:
    """Returns what the table of a version is called that is not served. Raises DomainRefused: too long."""
    table = f"{name}:{version}"
    if len(table) > _NAME_MAX:
        raise DomainRefused(
            f"projection {name!r}: the table of version {version} would be called {table!r}, which is longer than {_NAME_MAX} "
            "characters; give the projection a shorter name",
            projection=name,
        )
    return table


def rows_of(table: str) -> tuple[object, ...]:
    """Returns the values for `ROWS_OF`."""
    return table, len(table) + 1, f"{table}@"


def served_version(execute: Execute, name: str) -> int | None:
    """Returns the version that made the served table; None if there is none. One that an earlier program made is version 1."""
    rows = _rows(execute, name)
    recorded = next((version for *_, version in rows if version is not None), None)
    return 1 if recorded is None and any(sequence for _, sequence, _ in rows) else recorded


def take_over(database: Database, name: str, version: int, kept_until: int) -> TakenOver | None:
    """Has the table of `version` served, if it is as far as the served one. None: it is not, or is served by now; then roll
    back. The table that was served may be dropped from `kept_until` on, in seconds since 1970. One transaction at a time may
    do this.

    Both tables get new generations first: what writes to either is fenced, or is waited for.
    """
    execute, beside = database.execute, table_of(name, version)
    before = served_version(execute, name)
    if before is None or before == version:
        return None  # another process was faster
    aside = table_of(name, before)
    for each in (name, beside):
        for row, *_ in _rows(execute, each):
            _renew(database, row)
    old, new = ({row[len(each) :]: sequence for row, sequence, _ in _rows(execute, each)} for each in (name, beside))
    if not new or any(new.get(part, 0) < sequence for part, sequence in old.items()):
        return None
    _drop(database, aside)  # an older one of this version, which nobody reads
    database.exchange(name, aside, beside)
    _move(database, name, aside)
    _move(database, beside, name)
    execute(f"CREATE TABLE IF NOT EXISTS {KEPT} (projection text PRIMARY KEY, until bigint NOT NULL)", ())
    execute(f"INSERT INTO {KEPT} (projection, until) VALUES (?, ?)", (aside, kept_until))
    return TakenOver(version, sum(new.values()), before, aside)


def keep(database: Database, table: str) -> None:
    """Keeps the table of a version for good: it is to be served again."""
    if database.exists(KEPT):
        database.execute(f"DELETE FROM {KEPT} WHERE projection = ?", (table,))


def drop_expired(database: Database, name: str, now: int) -> int | None:
    """Drops the tables of other versions that were kept long enough. Returns when the next one is due; None: none is kept."""
    if not database.exists(KEPT):
        return None
    begins = f"{name}:"
    query = f"SELECT projection, until FROM {KEPT} WHERE substr(projection, 1, ?) = ? ORDER BY until"
    kept = database.execute(query, (len(begins), begins)).fetchall()
    for table, until in kept:
        if until <= now:
            _drop(database, table)
    return min((until for _, until in kept if until > now), default=None)


def _rows(execute: Execute, name: str) -> list[tuple[Any, ...]]:
    query = f"SELECT projection, sequence, version FROM {CHECKPOINTS} WHERE {ROWS_OF}"
    found: list[tuple[Any, ...]] = execute(query, rows_of(name)).fetchall()
    return found


def _renew(database: Database, row: str) -> None:
    generation = new_generation()
    for table in _tables(database):
        database.execute(f"UPDATE {table} SET generation = ? WHERE projection = ?", (generation, row))


def _move(database: Database, before: str, after: str) -> None:
    for row, *_ in _rows(database.execute, before):
        for table in _tables(database):
            renamed = after + row[len(before) :]
            database.execute(f"UPDATE {table} SET projection = ? WHERE projection = ?", (renamed, row))


def _drop(database: Database, table: str) -> None:
    database.drop(table)
    for each in (*_tables(database), *((KEPT,) if database.exists(KEPT) else ())):
        database.execute(f"DELETE FROM {each} WHERE {ROWS_OF}", rows_of(table))


def _tables(database: Database) -> tuple[str, ...]:
    return (CHECKPOINTS, PARKED) if database.exists(PARKED) else (CHECKPOINTS,)
