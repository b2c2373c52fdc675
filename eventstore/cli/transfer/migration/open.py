"""Opens a source by its address: `KIND:ADDRESS`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from eventstore.cli.transfer.migration.source import Source
from eventstore.cli.transfer.migration.table_source import LAYOUTS, Layout, PostgresTable, SqliteTable, with_options
from eventstore.errors import InvalidArgument
from eventstore.fields import shown, without_password

UMADB: Final = "umadb"
KURRENTDB: Final = "kurrentdb"
KINDS: Final = (*LAYOUTS, UMADB, KURRENTDB)
_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql://", "postgres://")


def open_source(
    address: str,
    *,
    table: str | None = None,
    columns: dict[str, str] | None = None,
    first_version: int | None = None,
    data: str | None = None,
    prefix: str | None = None,
    id_type: str | None = None,
    aggregate_tag: str | None = None,
) -> Source:
    """Returns the source. Raises InvalidArgument, SourceRefused."""
    kind, _, where = address.partition(":")
    if kind not in KINDS or not where:
        what = f"SOURCE is {shown(without_password(address))}; give KIND:ADDRESS, with one of the kinds {', '.join(KINDS)}"
        raise InvalidArgument(what, field="source")
    if kind == UMADB:
        from eventstore.cli.transfer.migration.umadb_source import UmaDbSource

        return UmaDbSource(where, prefix, aggregate_tag)
    if kind == KURRENTDB:
        from eventstore.cli.transfer.migration.kurrentdb_source import KurrentDbSource

        return KurrentDbSource(where)
    layout = with_options(_in_database(LAYOUTS[kind], where), table, columns or {}, first_version, data, prefix, id_type)
    name = f"{kind} {layout.table}"
    if where.startswith(_SQLITE):
        return SqliteTable(name, where.removeprefix(_SQLITE), layout)
    if where.startswith(_POSTGRES):
        return PostgresTable(name, where, layout)
    what = f"SOURCE is {kind}: and {shown(without_password(where))}; give {kind}:sqlite:PATH or {kind}:postgresql://…"
    raise InvalidArgument(what, field="source")


def _in_database(layout: Layout, where: str) -> Layout:
    """SQLite has no schemas."""
    return replace(layout, table=layout.table.rpartition(".")[2]) if where.startswith(_SQLITE) else layout


def checkpoint_name(source: Source) -> str:
    """Returns the name of a migration that was given none."""
    return source.name.replace(" ", "-")
