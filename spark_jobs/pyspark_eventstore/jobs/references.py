"""Names the rows that a rebuild would remove although rows of other tables reference them: PostgreSQL names one, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eventstore.domain.projections.projection import KEY_COLUMN
from eventstore.errors import ProjectionFailed

try:
    import psycopg
    from psycopg import sql
except ImportError:  # `RebuiltTable` says so
    pass

if TYPE_CHECKING:
    from psycopg import Connection

_NAMED_MAX: Final = 3  # rows of each foreign key
_FOREIGN_KEYS: Final = (
    "SELECT c.conname, c.conrelid::regclass::text, a.attname FROM pg_constraint c "
    "JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1] "
    "JOIN pg_attribute k ON k.attrelid = c.confrelid AND k.attnum = c.confkey[1] "
    "WHERE c.contype = 'f' AND c.conparentid = 0 AND c.confrelid = %s::regclass AND cardinality(c.conkey) = 1 "
    "AND k.attname = %s AND c.confdeltype IN ('a', 'r') ORDER BY 2, 3"
)


def still_referenced(
    connection: Connection[tuple[Any, ...]], name: str, staging: str, error: psycopg.errors.IntegrityError
) -> ProjectionFailed:
    """Returns the error to raise if replacing the rows of table `name` by the rows of `staging` failed with `error` and was
    rolled back.
    """
    try:
        named, count = _missing(connection, name, staging)
    except psycopg.Error:  # it may not read the other tables
        named, count = [], 0
    rows = ", ".join(named) or str(error.diag.message_detail or error).rstrip(".")
    return ProjectionFailed(
        f"projection {name!r} cannot replace its table: rows that the rebuild does not have are referenced, {rows}; nothing "
        "was changed. Change what references them, or declare the foreign keys ON DELETE CASCADE or SET NULL, and rebuild "
        "again",
        projection=name,
        target="postgresql",
        keys=count,
    )


def _missing(connection: Connection[tuple[Any, ...]], name: str, staging: str) -> tuple[list[str], int]:
    """Returns by foreign key which referenced rows would be gone, and how many there are in all."""
    named, missing = list[str](), 0
    for constraint, table, column in connection.execute(_FOREIGN_KEYS, (f'"{name}"', KEY_COLUMN)).fetchall():
        query = sql.SQL(
            "SELECT count(*), (array_agg(k ORDER BY k))[1:{}] FROM (SELECT DISTINCT r.{} AS k FROM {} r) AS referenced "
            "WHERE k IS NOT NULL AND NOT EXISTS (SELECT FROM {} s WHERE s.{} = k)"
        ).format(_NAMED_MAX, sql.Identifier(column), sql.SQL(table), *map(sql.Identifier, (staging, KEY_COLUMN)))
        [(count, first)] = connection.execute(query).fetchall()
        if count:
            more = f" and {count - len(first)} more" if count > len(first) else ""
            named.append(f"{', '.join(map(repr, first))}{more} by {table}.{column} ({constraint})")
            missing += count
    return named, missing
