"""A read model as a table of PostgreSQL: written beside the existing table, then swapped in within one transaction.

Table and checkpoint are those of a live projector, so that one can take over. A projector still running on the table is
fenced, because the checkpoint has moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eventstore.domain.projections.projection import CHECKPOINTS
from eventstore.errors import FolderRefused, ProjectionFailed

if TYPE_CHECKING:
    from eventstore.domain.projections.projection import Projection


class RebuiltTable:
    """The table of a projection in the database at `conninfo`."""

    def __init__(self, projection: Projection[Any], conninfo: str) -> None:
        from eventstore.domain.projections.targets.postgres import PostgresTarget

        self._projection = projection
        self._conninfo = conninfo
        self._target = PostgresTarget(conninfo)
        self._existed = False

    def check(self, *, replace: bool) -> None:
        """
        Raises:
            FolderRefused: the table exists and may not be replaced.
            ProjectionFailed: the database cannot be reached.
        """
        name = self._projection.name
        with self._connected() as connection:
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{name}"',)).fetchone()
        self._existed = bool(found and found[0])
        if self._existed and not replace:
            raise FolderRefused(f"table {name}", "exists; use --replace to replace it")

    def write(self, rows: Iterable[tuple[object, ...]], store: str, sequence: int) -> int:
        """Writes all rows and the checkpoint with its store, or nothing; returns the number of rows."""
        import psycopg
        from psycopg import sql

        name = self._projection.name
        table, staging, checkpoints = (
            sql.Identifier(name),
            sql.Identifier(f"{name[:50]}_rebuilding"),
            sql.Identifier(CHECKPOINTS),
        )
        self._target.open(self._projection)  # creates table and checkpoint if missing, with the right columns
        self._target.close()
        count = 0
        try:
            with self._connected() as connection, connection.transaction():
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging))
                connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(staging, table))
                with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(staging)) as copy:
                    for row in rows:
                        copy.write_row(row)
                        count += 1
                connection.execute(sql.SQL("DROP TABLE {}").format(table))
                connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(staging, table))
                connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (key)").format(table))
                move = sql.SQL("UPDATE {} SET sequence = %s, store = %s WHERE projection = %s").format(checkpoints)
                connection.execute(move, (sequence, store, name))
        except BaseException as error:
            if not self._existed:
                self._take_back()
            if isinstance(error, psycopg.Error):
                raise self._failed(error) from error
            raise
        return count

    def _take_back(self) -> None:
        """Removes the empty table created for this rebuild, so that a failed one leaves nothing."""
        from psycopg import sql

        name = self._projection.name
        with self._connected() as connection, connection.transaction():
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name)))
            remove = sql.SQL("DELETE FROM {} WHERE projection = %s AND sequence = 0").format(sql.Identifier(CHECKPOINTS))
            connection.execute(remove, (name,))

    def _connected(self) -> Any:
        import psycopg

        try:
            return psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10)
        except psycopg.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ProjectionFailed:
        name, text = self._projection.name, " ".join(str(error).split())[:300]
        return ProjectionFailed(f"projection {name!r} cannot use PostgreSQL: {text}", projection=name, target="postgresql")
