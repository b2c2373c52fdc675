"""A read model as a table of PostgreSQL: written beside the one that is there, and put in its place in one transaction.

The table and its checkpoint are those of a live projector, so that one can take over. A projector that is still at work on
the table is fenced: the checkpoint it moves is not where it left it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eventstore.domain.projection import CHECKPOINTS
from eventstore.errors import FolderRefused, ProjectionFailed

if TYPE_CHECKING:
    from eventstore.domain.projection import Projection


class RebuiltTable:
    """The table of a projection in the database at `conninfo`."""

    def __init__(self, projection: Projection[Any], conninfo: str) -> None:
        from eventstore.domain.postgres_target import PostgresTarget

        self._projection = projection
        self._conninfo = conninfo
        self._target = PostgresTarget(conninfo)
        self._existed = False

    def check(self, *, replace: bool) -> None:
        """
        Raises:
            FolderRefused: there is such a table, and it is not to be replaced.
            ProjectionFailed: the database cannot be reached.
        """
        name = self._projection.name
        with self._connected() as connection:
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{name}"',)).fetchone()
        self._existed = bool(found and found[0])
        if self._existed and not replace:
            raise FolderRefused(f"table {name}", "exists; --replace puts the new one in its place")

    def write(self, rows: Iterable[tuple[object, ...]], store: str, sequence: int) -> int:
        """All rows and the checkpoint, with the store it is of, or nothing; returns how many rows."""
        import psycopg
        from psycopg import sql

        name = self._projection.name
        table, staging, checkpoints = (
            sql.Identifier(name),
            sql.Identifier(f"{name[:50]}_rebuilding"),
            sql.Identifier(CHECKPOINTS),
        )
        self._target.open(self._projection)  # makes table and checkpoint where there are none, with the right columns
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
        """Removes the empty table that was made for this, so that a failed rebuild leaves nothing."""
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
