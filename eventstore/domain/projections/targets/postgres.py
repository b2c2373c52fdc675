"""`PostgresTarget`: a projection's table in PostgreSQL. Needs psycopg (the extra `postgres`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from eventstore.domain.projections.decimal_column import DecimalColumn
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
from eventstore.domain.projections.targets.inheriting import in_postgres, inherit
from eventstore.errors import DomainRefused, ProjectionFailed
from eventstore.extras import advice
from eventstore.following.checkpoint import Checkpoint, Origin
from eventstore.stopped_clock import real_class

_missing: ImportError | None = None
try:
    import psycopg
    from psycopg import sql
except ImportError as error:
    _missing = error

if TYPE_CHECKING:
    from psycopg import Connection

_KINDS: Final = {
    str: "text",
    int: "bigint",
    float: "double precision",
    bool: "boolean",
    bytes: "bytea",
    real_class(datetime): "timestamp with time zone",
    real_class(date): "date",
    Decimal: "numeric",
    UUID: "uuid",
}
_ADDED_COLUMNS: Final = {"identity": "text", "generation": "bigint NOT NULL DEFAULT 0", "version": "integer"}
"""Columns of the checkpoints that tables of earlier versions lack."""

_UNSTORABLE: Final = (UnicodeEncodeError, OverflowError)  # half a character; a time out of range
_NUL: Final = "\0"  # the one character of keys that no text of PostgreSQL can hold
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
                f"a target in PostgreSQL needs psycopg ({_missing}); {advice('postgres')}", target="postgresql"
            ) from _missing
        self._conninfo = conninfo
        self._connection: Connection[tuple[Any, ...]] | None = None
        self._name = ""
        self._row = ""
        self._shard: int | None = None
        self._origin: Origin | None = None
        self._generation = 0
        self._parks = False

    def of_shard(self, shard: int, origin: Origin | None = None) -> PostgresTarget:
        """See `Target.of_shard`."""
        other = copy(self)
        other._shard, other._origin = shard, origin
        return other

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> Checkpoint:
        """See `Target.open`."""
        self._name, self._row = projection.name, row_of(projection.name, self._shard)
        columns = table_columns(projection)
        self._prepare(columns)
        with self._translated_errors():
            if self._connection is None:
                self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=_CONNECT_SECONDS_MAX)
            with self._connection.transaction():
                existed = create_tables(self._connection, self._name, columns, self._row)
                self._prepare_parking(self._connection, creates=projection.on_failure == "park")
                if self._shard is not None:
                    run = in_postgres(self._connection.execute)
                    inherit(run, self._name, self._shard, self._origin, store, parks=self._parks)
                checkpoint, recorded = self._checkpoint()
                rows = self._rows(self._connection)
                furthest = max(sequence for _, sequence in rows)
                check_checkpoint(self._name, furthest, begins=begins)  # rolls back the tables just created
                check_table(self._name, furthest, existed=existed)
                check_rows(self._name, self._shard, rows)
                if check_store(self._name, recorded.store, store):
                    keep = sql.SQL("UPDATE {} SET store = %s WHERE projection = %s").format(sql.Identifier(CHECKPOINTS))
                    self._connection.execute(keep, (store, self._row))
                if check_version(self._name, checkpoint.sequence, recorded.version, projection.version):
                    keep = sql.SQL("UPDATE {} SET version = %s WHERE projection = %s").format(sql.Identifier(CHECKPOINTS))
                    self._connection.execute(keep, (projection.version, self._row))
                self._forget_parked(self._connection)
                if self._shard is not None:
                    self._set_generation(self._connection, new_generation())
                return checkpoint

    def _rows(self, connection: Connection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Returns all checkpoints of the table."""
        query = f"SELECT projection, sequence FROM {CHECKPOINTS} WHERE projection = %s OR starts_with(projection, %s)"
        return connection.execute(query, (self._name, f"{self._name}@")).fetchall()

    def _set_generation(self, connection: Connection[tuple[Any, ...]], generation: int) -> None:
        for table in (CHECKPOINTS, *((PARKED,) if self._parks else ())):
            connection.execute(f"UPDATE {table} SET generation = %s WHERE projection = %s", (generation, self._row))
        self._generation = generation

    def _prepare_parking(self, connection: Connection[tuple[Any, ...]], *, creates: bool) -> None:
        if creates:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {PARKED} (projection text, key text, sequence bigint NOT NULL, "
                "error text NOT NULL, generation bigint NOT NULL, PRIMARY KEY (projection, key))"
            )
        self._parks = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (PARKED,)).fetchone() == (True,)

    def _forget_parked(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Forgets keys that were parked in a table that was rebuilt since."""
        if self._parks:
            forget = f"DELETE FROM {PARKED} WHERE projection = %s AND generation <> %s"
            connection.execute(forget, (self._row, self._generation))

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Target.read`."""
        with self._translated_errors():
            return dict(self._open().execute(self._select, (_possible(keys),)).fetchall())

    def parked(self, keys: Sequence[str] | None) -> dict[str, ParkedKey]:
        """See `Target.parked`."""
        if not self._parks:
            return {}
        with self._translated_errors():
            query = f"SELECT key, sequence, error FROM {PARKED} WHERE projection = %s ORDER BY sequence"  # a bounded number
            found = self._open().execute(query, (self._row,))
            return parked_of(((_unescaped(key), *rest) for key, *rest in found), keys)

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
        connection = self._open()
        with self._translated_errors(), connection.transaction():
            moved = connection.execute(self._move, (*after, self._row, before, self._generation))
            if moved.rowcount != 1:
                raise fenced(self._row, before)
            if rows:
                connection.execute(self._upsert, [list(column) for column in zip(*rows, strict=True)])
            if deletions:
                connection.execute(self._delete, (_possible(deletions),))
            if parked or retried:
                self._park(connection, parked, retried)

    def check(self, at: int) -> None:
        """See `Target.check`."""
        query = f"SELECT 1 FROM {CHECKPOINTS} WHERE projection = %s AND sequence = %s AND generation = %s"
        with self._translated_errors():
            if self._open().execute(query, (self._row, at, self._generation)).fetchone() is None:
                raise fenced(self._row, at)

    def refusal(self, row: StoredRow) -> str | None:
        """See `Target.refusal`."""
        with self._translated_errors():
            try:
                self._open().execute(self._probe, row)
            except (psycopg.DataError, *_UNSTORABLE) as error:
                return " ".join(str(error).split())[:300]
        return None

    def _park(self, connection: Connection[tuple[Any, ...]], parked: Sequence[ParkedKey], retried: Sequence[str]) -> None:
        gone = [*map(_escaped, retried), *(_escaped(each.key) for each in parked)]
        connection.execute(f"DELETE FROM {PARKED} WHERE projection = %s AND key = ANY(%s::text[])", (self._row, gone))
        self._set_generation(connection, new_generation() if retried else self._generation)
        add = f"INSERT INTO {PARKED} (projection, key, sequence, error, generation) VALUES (%s, %s, %s, %s, %s)"
        connection.cursor().executemany(add, [(self._row, _escaped(key), *rest, self._generation) for key, *rest in parked])

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
        self._probe = sql.SQL("SELECT {}").format(sql.SQL(", ").join(sql.SQL(f"%s::{kind}") for kind in columns.values()))
        self._move = sql.SQL(
            "UPDATE {} SET sequence = %s, identity = %s WHERE projection = %s AND sequence = %s AND generation = %s"
        ).format(sql.Identifier(CHECKPOINTS))
        self._upsert = sql.SQL("INSERT INTO {} ({}) SELECT * FROM unnest({}) ON CONFLICT ({}) DO UPDATE SET {}").format(
            table,
            sql.SQL(", ").join(names),
            sql.SQL(", ").join(sql.SQL(f"%s::{kind}[]") for kind in columns.values()),
            key,
            sql.SQL(", ").join(sql.SQL("{} = excluded.{}").format(name, name) for name in names[1:]),
        )

    def _checkpoint(self) -> tuple[Checkpoint, TableRecord]:
        found = self._open().execute(
            sql.SQL("SELECT sequence, identity, generation, store, version FROM {} WHERE projection = %s").format(
                sql.Identifier(CHECKPOINTS)
            ),
            (self._row,),
        )
        row = found.fetchone()
        assert row is not None
        sequence, identity, self._generation, store, version = row
        return Checkpoint(sequence, identity), TableRecord(store, version)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, *_UNSTORABLE) as error:
            text = " ".join(str(error).split())[:300]
            raise ProjectionFailed(
                f"projection {self._name!r} cannot use PostgreSQL: {text}", projection=self._name, target="postgresql"
            ) from error


def _possible(keys: Sequence[str]) -> list[str]:
    """Returns the keys that a row of the table can have."""
    return [key for key in keys if _NUL not in key]


def _escaped(key: str) -> str:
    """Returns a key as the parked ones are stored."""
    return key.replace("\u2400", "\u24001").replace(_NUL, "\u24000")


def _unescaped(key: str) -> str:
    return key.replace("\u24000", _NUL).replace("\u24001", "\u2400")


def table_columns(projection: Projection[Any]) -> dict[str, str]:
    """Returns the columns of the projection's table and their types in PostgreSQL."""
    declared = {
        name: f"numeric({kind.precision},{kind.scale})" if isinstance(kind, DecimalColumn) else _KINDS[kind]
        for name, kind in projection.columns.items()
    }
    return {KEY_COLUMN: "text", **declared, STATE_COLUMN: "json"}


def create_tables(connection: Connection[tuple[Any, ...]], name: str, columns: dict[str, str], row: str | None = None) -> bool:
    """Creates what is missing of table and checkpoint, in the caller's transaction; returns whether the table existed. `row`:
    of the checkpoint, if it is not the table's name.

    Raises:
        DomainRefused: the table has other columns.
    """
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
    _create_checkpoints(connection)
    existed = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{name}"',)).fetchone() == (True,)
    primary = sql.SQL(" PRIMARY KEY")
    defined = [
        sql.SQL("{} {}{}").format(sql.Identifier(each), sql.SQL(kind), primary if each == KEY_COLUMN else sql.SQL(""))
        for each, kind in columns.items()
    ]
    connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(name), sql.SQL(", ").join(defined)))
    check_columns(name, _columns_of(connection, name), columns)
    begin = sql.SQL("INSERT INTO {} (projection, sequence, generation) VALUES (%s, 0, %s) ON CONFLICT DO NOTHING")
    connection.execute(begin.format(sql.Identifier(CHECKPOINTS)), (row or name, new_generation()))
    return existed


def _create_checkpoints(connection: Connection[tuple[Any, ...]]) -> None:
    table = sql.Identifier(CHECKPOINTS)
    connection.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} (projection text PRIMARY KEY, sequence bigint NOT NULL, store text)").format(
            table
        )
    )
    there = _columns_of(connection, CHECKPOINTS)
    for name, kind in _ADDED_COLUMNS.items():
        if name not in there:  # only then: even ADD COLUMN IF NOT EXISTS locks all readers and needs the owner
            connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(table, sql.Identifier(name), sql.SQL(kind)))


def _columns_of(connection: Connection[tuple[Any, ...]], table: str) -> dict[str, str]:
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (f'"{table}"',),
    )
    return dict(found.fetchall())
