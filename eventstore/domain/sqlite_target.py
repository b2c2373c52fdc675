"""A projection's table in a file of SQLite."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from eventstore.domain.projection import CHECKPOINTS, KEY_COLUMN, STATE_COLUMN, Projection
from eventstore.domain.target import StoredRow, check_checkpoint, check_columns, check_store, fenced
from eventstore.errors import ProjectionFailed

_KINDS: Final = {
    str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER", bytes: "BLOB",
    datetime: "TEXT", date: "TEXT", Decimal: "TEXT", UUID: "TEXT",
}  # fmt: skip
_NEXT_STEPS: Final = {
    sqlite3.SQLITE_CANTOPEN: "; check owner and mode of it and its folder",
    sqlite3.SQLITE_READONLY: "; check owner and mode of it and its folder",
    sqlite3.SQLITE_NOTADB: "; name another file, or one that is not there yet",
    sqlite3.SQLITE_FULL: "; free some space and start this again",
    sqlite3.SQLITE_BUSY: "; another program holds its lock: end that, or name another file",
}
_KEYS_PER_QUERY: Final = 500  # older releases take no more than 999 parameters
_LOCKED_SECONDS_MAX: Final = 30.0
_LOCKED_PAUSE_SECONDS: Final = 0.01


class SQLiteTarget:
    """Rows, states and checkpoint in the SQLite file `path`. A datetime becomes text in UTC, so that it sorts; a Decimal, a
    date and a UUID become text, a bool 0 or 1.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._connection: sqlite3.Connection | None = None
        self._name = ""
        self._width = 0

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> int:
        """See `Target.open`."""
        if not begins and not Path(self._path).exists():
            check_checkpoint(projection.name, 0, begins=False)  # connecting would make the file
        self._name, self._width = projection.name, len(projection.columns) + 2
        columns = {
            KEY_COLUMN: "TEXT",
            **{name: _KINDS[kind] for name, kind in projection.columns.items()},
            STATE_COLUMN: "TEXT",
        }
        self._upsert = _upsert(self._name, list(columns))
        with self._named():
            # Connections are made for one thread; ours goes from one worker thread to the next, never to two at once.
            self._connection = sqlite3.connect(
                self._path, timeout=_LOCKED_SECONDS_MAX, isolation_level=None, check_same_thread=False
            )
            _write_ahead(self._connection)
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._transaction() as connection:
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {CHECKPOINTS} "
                    "(projection TEXT PRIMARY KEY, sequence INTEGER NOT NULL, store TEXT)"
                )
                defined = ", ".join(
                    f'"{name}" {kind}' + (" PRIMARY KEY NOT NULL" if name == KEY_COLUMN else "")
                    for name, kind in columns.items()
                )
                connection.execute(f'CREATE TABLE IF NOT EXISTS "{self._name}" ({defined}) WITHOUT ROWID')
                connection.execute(f"INSERT OR IGNORE INTO {CHECKPOINTS} VALUES (?, 0, NULL)", (self._name,))
                found = {row[1]: row[2] for row in connection.execute(f'PRAGMA table_info("{self._name}")')}
                check_columns(self._name, found, columns)
                sequence, known = connection.execute(
                    f"SELECT sequence, store FROM {CHECKPOINTS} WHERE projection = ?", (self._name,)
                ).fetchone()
                assert isinstance(sequence, int)
                check_checkpoint(self._name, sequence, begins=begins)  # rolls back what was made
                if check_store(self._name, known, store):
                    connection.execute(f"UPDATE {CHECKPOINTS} SET store = ? WHERE projection = ?", (store, self._name))
        return sequence

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Target.read`."""
        found: dict[str, str] = {}
        remaining = iter(keys)
        with self._named():
            while part := list(islice(remaining, _KEYS_PER_QUERY)):
                query = f'SELECT "key", "state" FROM "{self._name}" WHERE "key" IN ({", ".join("?" * len(part))})'
                found.update(self._open().execute(query, part))
        return found

    def write(self, rows: Sequence[StoredRow], deletions: Sequence[str], before: int, checkpoint: int) -> None:
        """See `Target.write`."""
        with self._named(), self._transaction() as connection:
            moved = connection.execute(
                f"UPDATE {CHECKPOINTS} SET sequence = ? WHERE projection = ? AND sequence = ?", (checkpoint, self._name, before)
            )
            if moved.rowcount != 1:
                raise fenced(self._name, before)
            connection.executemany(self._upsert, (tuple(map(_stored, row)) for row in rows))
            connection.executemany(f'DELETE FROM "{self._name}" WHERE "key" = ?', ((key,) for key in deletions))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "the target was not opened"
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ProjectionFailed(
                f"projection {self._name!r} cannot use {self._path}: {error}{self._next_step(error)}",
                projection=self._name,
                target=self._path,
            ) from error

    def _next_step(self, error: sqlite3.Error) -> str:
        folder = Path(self._path).absolute().parent
        if not folder.is_dir():
            return f"; there is no folder {folder}: create it"
        if Path(self._path).is_dir():
            return "; it is a folder: name a file in it"
        return _NEXT_STEPS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches to the write-ahead log. Of two projectors that open a new file at the same time one would be told at once that
    it is locked: this statement, unlike all others, does not wait for a writer.
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


_CONVERSIONS: Final[dict[type, Callable[[object], object]]] = {datetime: _utc, date: str, Decimal: str, UUID: str}


def _stored(value: object) -> object:
    convert = _CONVERSIONS.get(type(value))
    return value if convert is None else convert(value)
