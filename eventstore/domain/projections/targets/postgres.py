"""`PostgresTarget`: a projection's table in PostgreSQL. Needs psycopg (the extra `postgres`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from eventstore.domain.projections.projection import CHECKPOINTS, KEY_COLUMN, STATE_COLUMN, Projection
from eventstore.domain.projections.targets.base import StoredRow, check_checkpoint, check_columns, check_store, fenced
from eventstore.errors import DomainRefused, ProjectionFailed

_missing: ImportError | None = None
try:
    import psycopg
    from psycopg import sql
except ImportError as error:
    _missing = error

if TYPE_CHECKING:
    from psycopg import Connection

_KINDS: Final = {
    str: "text", int: "bigint", float: "double precision", bool: "boolean", bytes: "bytea",
    datetime: "timestamp with time zone", date: "date", Decimal: "numeric", UUID: "uuid",
}  # fmt: skip
_CONNECT_SECONDS_MAX: Final = 10
_CREATE_LOCK: Final = 7_701_001  # advisory lock for creating tables: CREATE TABLE IF NOT EXISTS alone may race


class PostgresTarget:
    """Rows, states and checkpoint in the database that `conninfo` names, in the first schema of its search path.

    A batch is one transaction of at most four statements: rows travel as one array per column.

    Raises:
        DomainRefused: psycopg is not installed.
    """

    def __init__(self, conninfo: str) -> None:
        if _missing is not None:
            raise DomainRefused(
                f"a target in PostgreSQL needs psycopg ({_missing}); pip install 'psycopg[binary]'", target="postgresql"
            ) from _missing
        self._conninfo = conninfo
        self._connection: Connection[tuple[Any, ...]] | None = None
        self._name = ""

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> int:
        """See `Target.open`."""
        self._name = projection.name
        columns = {
            KEY_COLUMN: "text",
            **{name: _KINDS[kind] for name, kind in projection.columns.items()},
            STATE_COLUMN: "json",
        }
        self._prepare(columns)
        with self._translated_errors():
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=_CONNECT_SECONDS_MAX)
            with self._connection.transaction():
                self._create_tables(columns)
                checkpoint, recorded = self._checkpoint()
                check_checkpoint(self._name, checkpoint, begins=begins)  # rolls back the tables just created
                if check_store(self._name, recorded, store):
                    keep = sql.SQL("UPDATE {} SET store = %s WHERE projection = %s").format(sql.Identifier(CHECKPOINTS))
                    self._connection.execute(keep, (store, self._name))
                return checkpoint

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Target.read`."""
        with self._translated_errors():
            return dict(self._open().execute(self._select, (list(keys),)).fetchall())

    def write(self, rows: Sequence[StoredRow], deletions: Sequence[str], before: int, checkpoint: int) -> None:
        """See `Target.write`."""
        connection = self._open()
        with self._translated_errors(), connection.transaction():
            moved = connection.execute(self._move, (checkpoint, self._name, before))
            if moved.rowcount != 1:
                raise fenced(self._name, before)
            if rows:
                connection.execute(self._upsert, [list(column) for column in zip(*rows, strict=True)])
            if deletions:
                connection.execute(self._delete, (list(deletions),))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection[tuple[Any, ...]]:
        assert self._connection is not None, "the target was not opened"
        return self._connection

    def _prepare(self, columns: dict[str, str]) -> None:
        """Builds the statements, which are the same for every batch."""
        table, key, state = sql.Identifier(self._name), sql.Identifier(KEY_COLUMN), sql.Identifier(STATE_COLUMN)
        names = [sql.Identifier(name) for name in columns]
        self._select = sql.SQL("SELECT {}, {}::text FROM {} WHERE {} = ANY(%s::text[])").format(key, state, table, key)
        self._delete = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s::text[])").format(table, key)
        self._move = sql.SQL("UPDATE {} SET sequence = %s WHERE projection = %s AND sequence = %s").format(
            sql.Identifier(CHECKPOINTS)
        )
        self._upsert = sql.SQL("INSERT INTO {} ({}) SELECT * FROM unnest({}) ON CONFLICT ({}) DO UPDATE SET {}").format(
            table,
            sql.SQL(", ").join(names),
            sql.SQL(", ").join(sql.SQL(f"%s::{kind}[]") for kind in columns.values()),
            key,
            sql.SQL(", ").join(sql.SQL("{} = excluded.{}").format(name, name) for name in names[1:]),
        )

    def _create_tables(self, columns: dict[str, str]) -> None:
        connection = self._open()
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (projection text PRIMARY KEY, sequence bigint NOT NULL, store text)").format(
                sql.Identifier(CHECKPOINTS)
            )
        )
        defined = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(name), sql.SQL(kind), sql.SQL(" PRIMARY KEY" if name == KEY_COLUMN else "")
            )
            for name, kind in columns.items()
        ]
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(self._name), sql.SQL(", ").join(defined))
        )
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (f'"{self._name}"',),
        )
        check_columns(self._name, dict(found.fetchall()), columns)

    def _checkpoint(self) -> tuple[int, str | None]:
        """Returns the checkpoint and the store it belongs to."""
        connection, table = self._open(), sql.Identifier(CHECKPOINTS)
        connection.execute(sql.SQL("INSERT INTO {} VALUES (%s, 0) ON CONFLICT DO NOTHING").format(table), (self._name,))
        found = connection.execute(sql.SQL("SELECT sequence, store FROM {} WHERE projection = %s").format(table), (self._name,))
        row = found.fetchone()
        assert row is not None
        return int(row[0]), row[1]

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            text = " ".join(str(error).split())[:300]
            raise ProjectionFailed(
                f"projection {self._name!r} cannot use PostgreSQL: {text}", projection=self._name, target="postgresql"
            ) from error
