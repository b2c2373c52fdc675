"""A read model as a table of PostgreSQL: written to a temporary table, then swapped in within one transaction.

The table itself stays, with its grants, indexes, triggers and the views on it: only rows that differ are replaced, and rows of
keys that are gone are deleted. If rows of other tables reference such a row, nothing is changed, and the row is named. A live
projector uses the same table and checkpoint, so that one can take over. A projector that still runs on the table is fenced,
because a rebuilt table has a new generation, even at the same sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from eventstore.domain.projections.projection import CHECKPOINTS, KEY_COLUMN
from eventstore.domain.projections.targets.base import new_generation
from eventstore.errors import DomainRefused, FolderRefused, ProjectionFailed
from eventstore.following.checkpoint import Checkpoint
from pyspark_eventstore.jobs.references import still_referenced

try:
    import psycopg
    from psycopg import sql
except ImportError:  # PostgresTarget says so
    pass

if TYPE_CHECKING:
    from psycopg import Connection

    from eventstore.domain.projections.projection import Projection

_STAGING: Final = "rows being rebuilt"  # temporary: of this connection alone; no projection can have a name with spaces


class RebuiltTable:
    """The table of a projection in the database at `conninfo`. `beside`: that of its version, which is not served yet.

    Raises:
        DomainRefused: psycopg is not installed.
    """

    def __init__(self, projection: Projection[Any], conninfo: str, *, beside: bool = False) -> None:
        from eventstore.domain.projections.targets.postgres import PostgresTarget, table_columns
        from eventstore.domain.projections.targets.versions import table_of

        PostgresTarget(conninfo)  # refuses without psycopg
        self._projection = projection
        self.name = table_of(projection.name, projection.version) if beside else projection.name
        self._beside = beside
        self._conninfo = conninfo
        self._columns = table_columns(projection)

    def check(self, *, replace: bool) -> None:
        """Tries everything but the rows, and rolls it back: what cannot be done is refused before the work.

        Raises:
            FolderRefused: the table exists and may not be replaced.
            DomainRefused: the table has other columns than the projection.
            ProjectionFailed: the database cannot be reached, or does not let this user create or change the table.
        """
        name = self.name
        if self._beside:
            self._check_served()
        with self._connected() as connection:
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{name}"',)).fetchone()
            if found == (True,) and not replace:
                raise FolderRefused(f"table {name}", "exists; use --replace to replace it")
            self._stage(connection)
            with connection.transaction(force_rollback=True):
                self._begin(connection, {name: ("", Checkpoint(0))})
                for statement in self._swap():
                    connection.execute(sql.SQL("EXPLAIN {}").format(statement))  # checks privileges, changes nothing

    def write(self, rows: Iterable[tuple[object, ...]], upto: Mapping[str, tuple[str, Checkpoint]]) -> int:
        """Writes all rows and the checkpoints, each under its name with its store, or nothing; returns the number of rows."""
        count, staging = 0, sql.Identifier(_STAGING)
        with self._connected() as connection:
            self._stage(connection)
            with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(staging)) as copy:
                for row in rows:
                    copy.write_row(row)
                    count += 1
            connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(staging, sql.Identifier(KEY_COLUMN)))
            connection.execute(sql.SQL("ANALYZE {}").format(staging))
            try:
                self._replace(connection, upto)
            except psycopg.errors.IntegrityError as error:
                if error.diag.table_name in (None, self.name):  # not a row of another table
                    raise
                raise still_referenced(connection, self.name, _STAGING, error) from error
        return count

    def _replace(self, connection: Connection[tuple[Any, ...]], upto: Mapping[str, tuple[str, Checkpoint]]) -> None:
        with connection.transaction():
            self._begin(connection, upto)  # first, as a projector does: a running projector waits, and is fenced
            connection.execute("SET CONSTRAINTS ALL DEFERRED")  # foreign keys that allow it are held against the result alone
            for statement in self._swap():
                connection.execute(statement)

    def _stage(self, connection: Connection[tuple[Any, ...]]) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in self._columns.items()]
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({})")
        connection.execute(create.format(sql.Identifier(_STAGING), sql.SQL(", ").join(columns)))

    def _begin(self, connection: Connection[tuple[Any, ...]], upto: Mapping[str, tuple[str, Checkpoint]]) -> None:
        """Creates what is missing, and moves the checkpoints. Deletes the projection's checkpoints of other stores or
        shards.
        """
        from eventstore.domain.projections.targets.postgres import create_tables, served_tables
        from eventstore.domain.projections.targets.versions import keep

        name = self.name
        for row, (store, checkpoint) in upto.items():
            create_tables(connection, name, self._columns, row)
            connection.execute(
                f"UPDATE {CHECKPOINTS} SET sequence = %s, identity = %s, store = %s, version = %s, generation = %s "
                "WHERE projection = %s",
                (*checkpoint, store, self._projection.version, new_generation(), row),
            )
        if self._beside:
            keep(served_tables(connection), name)
        others = f"FROM {CHECKPOINTS} WHERE (projection = %s OR starts_with(projection, %s)) AND projection <> ALL(%s::text[])"
        given = (name, f"{name}@", list(upto))
        if connection.execute(f"SELECT 1 {others}", given).fetchone() is not None:  # deleting needs a privilege of its own
            connection.execute(f"DELETE {others}", given)

    def _swap(self) -> list[sql.Composed]:
        """Returns the statements that give the table the staged rows, and leave alone what is the same."""
        table, staging, key = map(sql.Identifier, (self.name, _STAGING, KEY_COLUMN))
        names = list(self._columns)
        values = sql.SQL(", ").join(map(sql.Identifier, names))
        there, new = (sql.SQL(", ").join(self._compared(owner, name) for name in names) for owner in (None, "excluded"))
        updates = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names[1:])
        delete = sql.SQL("DELETE FROM {0} WHERE NOT EXISTS (SELECT FROM {1} WHERE {1}.{2} = {0}.{2})")
        upsert = sql.SQL(
            "INSERT INTO {table} ({values}) SELECT {values} FROM {staging} ON CONFLICT ({key}) DO UPDATE SET {updates} "
            "WHERE ROW({there}) IS DISTINCT FROM ROW({new})"
        )
        return [
            delete.format(table, staging, key),
            upsert.format(table=table, values=values, staging=staging, key=key, updates=updates, there=there, new=new),
        ]

    def _compared(self, owner: str | None, name: str) -> sql.Composed:
        """Returns a column of the table (None) or of the new row in a form that shows each difference."""
        column = sql.SQL("{}.{}").format(sql.Identifier(owner or self.name), sql.Identifier(name))
        as_text = self._columns[name].startswith(("json", "numeric"))  # json has no equality, and 1.5 equals 1.50
        return sql.SQL("{}::text").format(column) if as_text else column

    def _check_served(self) -> None:
        """Raises DomainRefused unless another version is served, which this one may take over from."""
        from eventstore.domain.projections.targets.postgres import PostgresTarget

        name, version = self._projection.name, self._projection.version
        served = PostgresTarget(self._conninfo).served(self._projection)
        if served is None or served == version:
            what = "there is no table yet" if served is None else f"version {version} is served already"
            raise DomainRefused(f"--beside: {what} of projection {name!r}; rebuild it without --beside", projection=name)

    @contextmanager
    def _connected(self) -> Iterator[Connection[tuple[Any, ...]]]:
        try:
            with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10) as connection:
                yield connection
        except psycopg.Error as error:
            name, text = self._projection.name, " ".join(str(error).split())[:300]
            raise ProjectionFailed(
                f"projection {name!r} cannot use PostgreSQL: {text}", projection=name, target="postgresql"
            ) from error
