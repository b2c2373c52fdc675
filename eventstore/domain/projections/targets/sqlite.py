"""`SQLiteTarget`: a projection's table in an SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from eventstore.domain.projections.decimal_column import DecimalColumn
from eventstore.domain.projections.difference import TableDifference, between, compare
from eventstore.domain.projections.projection import CHECKPOINTS, KEY_COLUMN, PARKED, STATE_COLUMN, Projection
from eventstore.domain.projections.targets.base import (
    ParkedKey,
    StoredRow,
    TableRecord,
    check_checkpoint,
    check_columns,
    check_rows,
    check_store,
    check_table,
    check_version,
    fenced,
    new_generation,
    parked_of,
    row_of,
)
from eventstore.domain.projections.targets.inheriting import inherit
from eventstore.domain.projections.targets.versions import (
    ROWS_OF,
    Database,
    TakenOver,
    drop_expired,
    keep,
    rows_of,
    served_version,
    table_of,
    take_over,
)
from eventstore.errors import ProjectionFailed
from eventstore.following.checkpoint import Checkpoint, Origin
from eventstore.stopped_clock import real_class

_KINDS: Final = {
    str: "TEXT",
    int: "INTEGER",
    float: "REAL",
    bool: "INTEGER",
    bytes: "BLOB",
    real_class(datetime): "TEXT",
    real_class(date): "TEXT",
    Decimal: "TEXT",
    UUID: "TEXT",
}
_ADDED_COLUMNS: Final = {"identity": "TEXT", "generation": "INTEGER NOT NULL DEFAULT 0", "version": "INTEGER"}
"""Columns of the checkpoints that tables of earlier versions lack."""

_NEXT_STEPS: Final = {
    sqlite3.SQLITE_CANTOPEN: "; check the owner and mode of the file and its folder",
    sqlite3.SQLITE_READONLY: "; check the owner and mode of the file and its folder",
    sqlite3.SQLITE_NOTADB: "; name an SQLite file, or one that does not exist yet",
    sqlite3.SQLITE_FULL: "; free some space and start again",
    sqlite3.SQLITE_BUSY: "; another program has locked it: stop that program, or name another file",
}
_UNSTORABLE: Final = (UnicodeEncodeError, OverflowError)  # half a character; a number or time out of range
_KEYS_PER_QUERY: Final = 500  # older releases allow at most 999 parameters
_LOCKED_SECONDS_MAX: Final = 30.0
_LOCKED_PAUSE_SECONDS: Final = 0.01


class SQLiteTarget:
    """Rows, states and checkpoint in the SQLite file `path`. A datetime is stored as text in UTC, so that it sorts; Decimal,
    date and UUID as text, bool as 0 or 1.

    Attributes:
        file: where it is, whatever the path looks like; all tables in it have one writer at a time.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self.file = str(Path(path).resolve())
        self._connection: sqlite3.Connection | None = None
        self._beside: int | None = None
        self._name = ""
        self._row = ""
        self._shard: int | None = None
        self._origin: Origin | None = None
        self._generation = 0
        self._parks = False

    def of_shard(self, shard: int, origin: Origin | None = None) -> SQLiteTarget:
        """See `Target.of_shard`."""
        other = copy(self)
        other._shard, other._origin = shard, origin
        return other

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> Checkpoint:
        """See `Target.open`."""
        if not begins and not Path(self._path).exists():
            check_checkpoint(projection.name, 0, begins=False)  # connecting would create the file
        self._name = projection.name if self._beside is None else table_of(projection.name, self._beside)
        self._row = row_of(self._name, self._shard)
        columns = {
            KEY_COLUMN: "TEXT",
            **{name: "TEXT" if isinstance(kind, DecimalColumn) else _KINDS[kind] for name, kind in projection.columns.items()},
            STATE_COLUMN: "TEXT",
        }
        self._upsert = _upsert(self._name, list(columns))
        with self._translated_errors():
            self._connect()
            with self._transaction() as connection:
                existed = self._create_tables(connection, columns)
                self._prepare_parking(connection, creates=projection.on_failure == "park")
                if self._shard is not None:
                    inherit(connection.execute, self._name, self._shard, self._origin, store, parks=self._parks)
                checkpoint, recorded = self._checkpoint(connection)
                rows = self._rows(connection)
                furthest = max(sequence for _, sequence in rows)
                check_checkpoint(self._name, furthest, begins=begins)  # rolls back the tables just created
                check_table(self._name, furthest, existed=existed)
                check_rows(self._name, self._shard, rows)
                if check_store(self._name, recorded.store, store):
                    connection.execute(f"UPDATE {CHECKPOINTS} SET store = ? WHERE projection = ?", (store, self._row))
                if check_version(self._name, checkpoint.sequence, recorded.version, projection.version):
                    connection.execute(
                        f"UPDATE {CHECKPOINTS} SET version = ? WHERE projection = ?", (projection.version, self._row)
                    )
                self._forget_parked(connection)
                if self._beside is not None:
                    keep(_database(connection), self._name)
                if self._shard is not None:
                    self._set_generation(connection, new_generation())
        return checkpoint

    def beside(self, version: int) -> SQLiteTarget:
        """See `VersionedTarget.beside`."""
        other = copy(self)
        other._connection, other._beside = None, version
        return other

    def _rows(self, connection: sqlite3.Connection) -> list[tuple[str, int]]:
        """Returns all checkpoints of the table."""
        query = f"SELECT projection, sequence FROM {CHECKPOINTS} WHERE projection = ?1 OR substr(projection, 1, ?2) = ?1 || '@'"
        return connection.execute(query, (self._name, len(self._name) + 1)).fetchall()

    def _set_generation(self, connection: sqlite3.Connection, generation: int) -> None:
        for table in (CHECKPOINTS, *((PARKED,) if self._parks else ())):
            connection.execute(f"UPDATE {table} SET generation = ? WHERE projection = ?", (generation, self._row))
        self._generation = generation

    def _prepare_parking(self, connection: sqlite3.Connection, *, creates: bool) -> None:
        if creates:
            columns = "projection TEXT, key TEXT, sequence INTEGER NOT NULL, error TEXT NOT NULL, generation INTEGER NOT NULL"
            connection.execute(f"CREATE TABLE IF NOT EXISTS {PARKED} ({columns}, PRIMARY KEY (projection, key))")
        self._parks = bool(connection.execute(f"PRAGMA table_info({PARKED})").fetchone())

    def _forget_parked(self, connection: sqlite3.Connection) -> None:
        """Forgets keys that were parked in a table that was rebuilt since."""
        if self._parks:
            forget = f"DELETE FROM {PARKED} WHERE projection = ? AND generation <> ?"
            connection.execute(forget, (self._row, self._generation))

    def _checkpoint(self, connection: sqlite3.Connection) -> tuple[Checkpoint, TableRecord]:
        sequence, identity, self._generation, store, version = connection.execute(
            f"SELECT sequence, identity, generation, store, version FROM {CHECKPOINTS} WHERE projection = ?", (self._row,)
        ).fetchone()
        return Checkpoint(sequence, identity), TableRecord(store, version)

    def _create_tables(self, connection: sqlite3.Connection, columns: dict[str, str]) -> bool:
        """Creates what is missing; returns whether the projection's table existed."""
        _create_checkpoints(connection)
        existed = bool(connection.execute(f'PRAGMA table_info("{self._name}")').fetchone())
        defined = ", ".join(
            f'"{name}" {kind}' + (" PRIMARY KEY NOT NULL" if name == KEY_COLUMN else "") for name, kind in columns.items()
        )
        connection.execute(f'CREATE TABLE IF NOT EXISTS "{self._name}" ({defined}) WITHOUT ROWID')
        begin = f"INSERT OR IGNORE INTO {CHECKPOINTS} (projection, sequence, generation) VALUES (?, 0, ?)"
        connection.execute(begin, (self._row, new_generation()))
        found = {row[1]: row[2] for row in connection.execute(f'PRAGMA table_info("{self._name}")')}
        check_columns(self._name, found, columns)
        return existed

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Target.read`."""
        found: dict[str, str] = {}
        remaining = iter(keys)
        with self._translated_errors():
            while part := list(islice(remaining, _KEYS_PER_QUERY)):
                query = f'SELECT "key", "state" FROM "{self._name}" WHERE "key" IN ({", ".join("?" * len(part))})'
                found.update(self._open().execute(query, part))
        return found

    def parked(self, keys: Sequence[str] | None) -> dict[str, ParkedKey]:
        """See `Target.parked`."""
        if not self._parks:
            return {}
        with self._translated_errors():
            query = f"SELECT key, sequence, error FROM {PARKED} WHERE projection = ? ORDER BY sequence"  # a bounded number
            return parked_of(self._open().execute(query, (self._row,)), keys)

    def write(
        self,
        rows: Sequence[StoredRow],
        deletions: Sequence[str],
        before: int,
        after: Checkpoint,
        parked: Sequence[ParkedKey] = (),
        retried: Sequence[str] = (),
    ) -> None:
        """See `Target.write`."""
        with self._translated_errors(), self._transaction() as connection:
            moved = connection.execute(
                f"UPDATE {CHECKPOINTS} SET sequence = ?, identity = ? WHERE projection = ? AND sequence = ? AND generation = ?",
                (*after, self._row, before, self._generation),
            )
            if moved.rowcount != 1:
                raise fenced(self._row, before)
            connection.executemany(self._upsert, (tuple(map(_stored, row)) for row in rows))
            connection.executemany(f'DELETE FROM "{self._name}" WHERE "key" = ?', ((key,) for key in deletions))
            if parked or retried:
                self._park(connection, parked, retried)

    def check(self, at: int) -> None:
        """See `Target.check`."""
        query = f"SELECT 1 FROM {CHECKPOINTS} WHERE projection = ? AND sequence = ? AND generation = ?"
        with self._translated_errors():
            if self._open().execute(query, (self._row, at, self._generation)).fetchone() is None:
                raise fenced(self._row, at)

    def refusal(self, row: StoredRow) -> str | None:
        """See `Target.refusal`."""
        with self._translated_errors():
            try:
                self._open().execute(f"SELECT {', '.join('?' * len(row))}", tuple(map(_stored, row)))
            except (*_UNSTORABLE, sqlite3.DataError) as error:
                return f"{type(error).__name__}: {error}"
        return None

    def _park(self, connection: sqlite3.Connection, parked: Sequence[ParkedKey], retried: Sequence[str]) -> None:
        gone = f"DELETE FROM {PARKED} WHERE projection = ? AND key = ?"
        connection.executemany(gone, ((self._row, key) for key in retried))
        self._set_generation(connection, new_generation() if retried else self._generation)
        add = f"INSERT OR REPLACE INTO {PARKED} (projection, key, sequence, error, generation) VALUES (?, ?, ?, ?, ?)"
        connection.executemany(add, ((self._row, *each, self._generation) for each in parked))

    def served(self, projection: Projection[Any]) -> int | None:
        """See `VersionedTarget.served`."""
        if not Path(self._path).exists():
            return None  # connecting would create the file
        with self._administration(projection) as connection:
            return served_version(connection.execute, projection.name)

    def take_over(self, projection: Projection[Any], kept_until: int) -> TakenOver | None:
        """See `VersionedTarget.take_over`."""
        with self._administration(projection) as connection:
            taken = take_over(_database(connection), projection.name, projection.version, kept_until)
            if taken is None:
                connection.execute("ROLLBACK")
            return taken

    def drop_expired(self, projection: Projection[Any], now: int) -> int | None:
        """See `VersionedTarget.drop_expired`."""
        with self._translated_errors(), self._transaction() as connection:
            return drop_expired(_database(connection), projection.name, now)

    def difference(self, projection: Projection[Any], before: str, after: str) -> TableDifference:
        """See `VersionedTarget.difference`."""
        if not Path(self._path).exists():
            between(before, after, (), ())  # connecting would create the file
        with self._administration(projection, begin="BEGIN") as connection:
            columns = [[row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')] for table in (before, after)]
            found, common = between(before, after, *columns)
            of_both = f"SELECT projection, sequence FROM {CHECKPOINTS} WHERE {' OR '.join([ROWS_OF] * 2)}"
            found.places = dict(connection.execute(of_both, (*rows_of(before), *rows_of(after))))
            listed = ", ".join(f'"{name}"' for name in (KEY_COLUMN, *common))
            rows = (connection.execute(f'SELECT {listed} FROM "{table}" ORDER BY "key"') for table in (before, after))
            return compare(found, common, *rows)

    @contextmanager
    def _administration(self, projection: Projection[Any], begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Opens a connection for one transaction, about tables of all versions."""
        other = copy(self)
        other._connection, other._name = None, projection.name
        with other._translated_errors():
            try:
                connection = other._connect()
                connection.execute("PRAGMA legacy_alter_table = ON")  # views keep the names that they read from
                with other._transaction(begin):
                    _create_checkpoints(connection)
                    yield connection
            finally:
                other.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "the target was not opened"
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            # Used by one worker thread after the other, never by two at once.
            self._connection = sqlite3.connect(
                self._path, timeout=_LOCKED_SECONDS_MAX, isolation_level=None, check_same_thread=False
            )
            _write_ahead(self._connection)
            self._connection.execute("PRAGMA synchronous = FULL")
        return self._connection

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        connection = self._open()
        connection.execute(begin)
        try:
            yield connection
            if connection.in_transaction:
                connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, *_UNSTORABLE) as error:
            raise ProjectionFailed(
                f"projection {self._name!r} cannot use {self._path}: {error}{self._next_step(error)}",
                projection=self._name,
                target=self._path,
            ) from error

    def _next_step(self, error: Exception) -> str:
        folder = Path(self._path).absolute().parent
        if not folder.is_dir():
            return f"; folder {folder} does not exist: create it"
        if Path(self._path).is_dir():
            return "; it is a folder: name a file"
        return _NEXT_STEPS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "")


def _create_checkpoints(connection: sqlite3.Connection) -> None:
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {CHECKPOINTS} (projection TEXT PRIMARY KEY, sequence INTEGER NOT NULL, store TEXT)"
    )
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({CHECKPOINTS})")}
    for name, kind in _ADDED_COLUMNS.items():
        if name not in there:
            connection.execute(f"ALTER TABLE {CHECKPOINTS} ADD COLUMN {name} {kind}")


def _database(connection: sqlite3.Connection) -> Database:
    def exists(table: str) -> bool:
        return bool(connection.execute(f'PRAGMA table_info("{table}")').fetchone())

    def exchange(served: str, aside: str, beside: str) -> None:
        connection.execute(f'ALTER TABLE "{served}" RENAME TO "{aside}"')
        connection.execute(f'ALTER TABLE "{beside}" RENAME TO "{served}"')

    def drop(table: str) -> None:
        connection.execute(f'DROP TABLE IF EXISTS "{table}"')

    return Database(connection.execute, exists, exchange, drop)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches to the write-ahead log. Retries while the file is locked, for instance by another projector that opens it at the
    same time: unlike all others, this statement does not wait for a writer.
    """
    until = time.monotonic() + _LOCKED_SECONDS_MAX
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOCKED_PAUSE_SECONDS)
        else:
            return


def _upsert(table: str, columns: Iterable[str]) -> str:
    names = [f'"{name}"' for name in columns]
    updates = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    return (
        f'INSERT INTO "{table}" ({", ".join(names)}) VALUES ({", ".join("?" * len(names))}) '
        f'ON CONFLICT ("{KEY_COLUMN}") DO UPDATE SET {updates}'
    )


def _utc(value: object) -> object:
    assert isinstance(value, datetime)
    return value.astimezone(UTC).isoformat()


_CONVERSIONS: Final[dict[type, Callable[[object], object]]] = {
    real_class(datetime): _utc,
    real_class(date): str,
    Decimal: str,
    UUID: str,
}


def _stored(value: object) -> object:
    convert = _CONVERSIONS.get(type(value))
    return value if convert is None else convert(value)
