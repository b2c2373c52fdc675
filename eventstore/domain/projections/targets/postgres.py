"""`PostgresTarget`: a projection's table in PostgreSQL. Needs psycopg (the extra `postgres`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
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
from eventstore.domain.projections.targets.inheriting import in_postgres, inherit
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

_log = logging.getLogger(__name__)
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
_LOCK_MILLISECONDS_MAX: Final = 2_000  # while an exchange waits for a table, so do all that come to read it
_ROWS_AT_ONCE: Final = 10_000
_CREATE_LOCK: Final = 7_701_001  # advisory lock for creating and naming tables: CREATE TABLE IF NOT EXISTS alone may race


class PostgresConnection:
    """A connection that several tables use in turns. It is there while one of them is open."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._users = set[object]()
        self._open: Connection[tuple[Any, ...]] | None = None

    def take(self, user: object) -> Connection[tuple[Any, ...]]:
        """Returns the connection, a new one if it was lost."""
        if self._open is None or self._open.closed:
            self._open = connected(self._conninfo)
        self._users.add(user)
        return self._open

    @property
    def current(self) -> Connection[tuple[Any, ...]]:
        assert self._open is not None, "the target was not opened"
        return self._open

    def leave(self, user: object) -> None:
        """Closes it with its last user."""
        self._users.discard(user)
        if not self._users and self._open is not None:
            self._open.close()
            self._open = None


class PostgresTarget:
    """Rows, states and checkpoint in the database that `conninfo` names, in the first schema of its search path.

    A batch is one transaction of at most four statements: rows travel as one array per column.

    Attributes:
        file: its connection; all tables on it have one writer at a time.

    Raises:
        DomainRefused: psycopg is not installed.
    """

    def __init__(self, conninfo: str, connection: PostgresConnection | None = None) -> None:
        """`connection`: one to share with other tables of this database."""
        if _missing is not None:
            raise DomainRefused(
                f"a target in PostgreSQL needs psycopg ({_missing}); {advice('postgres')}", target="postgresql"
            ) from _missing
        self._conninfo = conninfo
        self.file = connection or PostgresConnection(conninfo)
        self._user = object()  # the same of all shards
        self._beside: int | None = None
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
        self._name = projection.name if self._beside is None else table_of(projection.name, self._beside)
        self._row = row_of(self._name, self._shard)
        columns = table_columns(projection)
        self._prepare(columns)
        with self._translated_errors():
            connection = self.file.take(self._user)
            with connection.transaction():
                existed = create_tables(connection, self._name, columns, self._row)
                self._prepare_parking(connection, creates=projection.on_failure == "park")
                if self._shard is not None:
                    run = in_postgres(connection.execute)
                    inherit(run, self._name, self._shard, self._origin, store, parks=self._parks)
                checkpoint, recorded = self._checkpoint()
                rows = self._rows(connection)
                furthest = max(sequence for _, sequence in rows)
                check_checkpoint(self._name, furthest, begins=begins)  # rolls back the tables just created
                check_table(self._name, furthest, existed=existed)
                check_rows(self._name, self._shard, rows)
                if check_store(self._name, recorded.store, store):
                    connection.execute(f"UPDATE {CHECKPOINTS} SET store = %s WHERE projection = %s", (store, self._row))
                if check_version(self._name, checkpoint.sequence, recorded.version, projection.version):
                    record = f"UPDATE {CHECKPOINTS} SET version = %s WHERE projection = %s"
                    connection.execute(record, (projection.version, self._row))
                self._forget_parked(connection)
                if self._beside is not None:
                    keep(served_tables(connection), self._name)
                if self._shard is not None:
                    self._set_generation(connection, new_generation())
                return checkpoint

    def beside(self, version: int) -> PostgresTarget:
        """See `VersionedTarget.beside`."""
        other = copy(self)
        other._user, other._beside = object(), version
        return other

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
        self._parks = _exists(connection, PARKED)

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

    def served(self, projection: Projection[Any]) -> int | None:
        """See `VersionedTarget.served`."""
        with self._administration(projection) as connection:
            return served_version(in_postgres(connection.execute), projection.name)

    def take_over(self, projection: Projection[Any], kept_until: int) -> TakenOver | None:
        """See `VersionedTarget.take_over`."""
        try:
            with self._administration(projection) as connection:
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS_MAX}")
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))  # one exchange after the other
                taken = take_over(served_tables(connection), projection.name, projection.version, kept_until)
                if taken is None:
                    raise psycopg.Rollback
                return taken
        except ProjectionFailed as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
        return None  # a reader had the table for long; those that came after it wait no longer

    def drop_expired(self, projection: Projection[Any], now: int) -> int | None:
        """See `VersionedTarget.drop_expired`."""
        connection = self._open()
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS_MAX}")
                return drop_expired(served_tables(connection), projection.name, now)
        except psycopg.Error as error:
            _log.warning(
                "%s: a table that is no longer kept cannot be dropped: %s", projection.name, " ".join(str(error).split())
            )
        return None

    def difference(self, projection: Projection[Any], before: str, after: str) -> TableDifference:
        """See `VersionedTarget.difference`."""
        with self._administration(projection) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            columns = [list(_columns_of(connection, table)) if _exists(connection, table) else [] for table in (before, after)]
            found, common = between(before, after, *columns)
            of_both = f"SELECT projection, sequence FROM {CHECKPOINTS} WHERE {' OR '.join([ROWS_OF] * 2)}"
            found.places = dict(in_postgres(connection.execute)(of_both, (*rows_of(before), *rows_of(after))).fetchall())
            key = sql.Identifier(KEY_COLUMN)
            values = [key, *(sql.SQL("{}::text").format(sql.Identifier(name)) for name in common)]
            query = sql.SQL('SELECT {} FROM {} ORDER BY {} COLLATE "C"')
            with connection.cursor("before") as one, connection.cursor("after") as other:
                for cursor, table in ((one, before), (other, after)):
                    cursor.itersize = _ROWS_AT_ONCE  # of the server's cursor, which hands out rows in parts
                    cursor.execute(query.format(sql.SQL(", ").join(values), sql.Identifier(table), key))
                return compare(found, common, one, other)

    @contextmanager
    def _administration(self, projection: Projection[Any]) -> Iterator[Connection[tuple[Any, ...]]]:
        """Opens a connection for one transaction, about tables of all versions."""
        other = copy(self)
        other._name = projection.name
        with other._translated_errors(), connected(self._conninfo) as connection:
            _create_checkpoints(connection)
            with connection.transaction():
                yield connection

    def close(self) -> None:
        self.file.leave(self._user)

    def _open(self) -> Connection[tuple[Any, ...]]:
        return self.file.current

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


def connected(conninfo: str) -> Connection[tuple[Any, ...]]:
    return psycopg.connect(conninfo, autocommit=True, connect_timeout=_CONNECT_SECONDS_MAX)


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
    existed = _exists(connection, name)
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


def _exists(connection: Connection[tuple[Any, ...]], table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{table}"',)).fetchone() == (True,)


def _columns_of(connection: Connection[tuple[Any, ...]], table: str) -> dict[str, str]:
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (f'"{table}"',),
    )
    return dict(found.fetchall())


def served_tables(connection: Connection[tuple[Any, ...]]) -> Database:
    """Returns the tables of a transaction, for an exchange of their names."""

    def exchange(served: str, aside: str, beside: str) -> None:
        _check_row_security(connection, served, beside)
        views, grants = _views_on(connection, served), _grants_on(connection, served, beside)
        rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
        for before, after in ((served, aside), (beside, served)):
            connection.execute(rename.format(sql.Identifier(before), sql.Identifier(after)))
        for statement in (*views, *grants):
            connection.execute(sql.SQL(statement))  # which the database itself has made

    def drop(table: str) -> None:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(table)))

    return Database(in_postgres(connection.execute), lambda table: _exists(connection, table), exchange, drop)


def _views_on(connection: Connection[tuple[Any, ...]], table: str) -> list[str]:
    """Returns the statements that make the views on a table again: a view reads from a table, whatever that is called.

    Raises:
        DomainRefused: what refers to the table cannot be made again like this.
    """
    found = connection.execute(
        "SELECT DISTINCT c.oid::regclass::text, c.relkind::text, array_to_string(c.reloptions, ', '), pg_get_viewdef(c.oid) "
        "FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid "
        "JOIN pg_class c ON c.oid = r.ev_class WHERE d.refobjid = %s::regclass AND c.oid <> d.refobjid",
        (f'"{table}"',),
    ).fetchall()
    keys = connection.execute(
        "SELECT conname, conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::regclass",
        (f'"{table}"',),
    ).fetchall()
    fixed = [f"materialized view {name}" for name, kind, *_ in found if kind != "v"]
    fixed += [f"foreign key {name} of {owner}" for name, owner in keys]
    if fixed:
        raise DomainRefused(
            f"table {table!r} cannot be exchanged: {fixed[0]} refers to it, and would keep the table of before; drop it and "
            "make it again afterwards, or rebuild the table in its place (eventstore-spark rebuild --replace)",
            projection=table,
        )
    return [
        f"CREATE OR REPLACE VIEW {name} {f'WITH ({options})' if options else ''} AS {query}"
        for name, _, options, query in found
    ]


def _check_row_security(connection: Connection[tuple[Any, ...]], served: str, beside: str) -> None:
    """Raises DomainRefused if readers would see rows that policies keep from them now."""
    query = "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s::regclass"
    before, after = (connection.execute(query, (f'"{table}"',)).fetchone() or (False, False) for table in (served, beside))
    if (before[0] and not after[0]) or (before[1] and not after[1]):
        raise DomainRefused(
            f"table {served!r} cannot be exchanged: it has row level security, and {beside!r} does not have it as well; "
            "build that with --beside, give it policies, and exchange it then",
            projection=served,
        )


def _grants_on(connection: Connection[tuple[Any, ...]], table: str, other: str) -> list[str]:
    """Returns the statements that give the other table, under this name, what others may do with this one and its columns."""
    found = connection.execute(
        "SELECT format('GRANT %%s%%s ON %%I TO %%s%%s', a.privilege_type, columns, %s::text, "
        "CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, "
        "CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) "
        "FROM pg_class c, LATERAL ("
        "  SELECT c.relacl AS acl, '' AS columns UNION ALL SELECT mine.attacl, format(' (%%I)', mine.attname) "
        "  FROM pg_attribute mine JOIN pg_attribute its ON its.attrelid = %s::regclass AND its.attname = mine.attname "
        "  WHERE mine.attrelid = c.oid AND NOT mine.attisdropped"
        ") AS given, aclexplode(given.acl) a WHERE c.oid = %s::regclass AND a.grantee <> c.relowner",
        (table, f'"{other}"', f'"{table}"'),
    )
    return [statement for (statement,) in found.fetchall()]
