"""Describes a file or folder of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_json, print_line, print_table
from eventstore.cli.terminal.shared_options import AsJson

if TYPE_CHECKING:
    from eventstore.cli.inspection import FileReport


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of a data folder, or the folder itself.")],
    records: Annotated[int, typer.Option(metavar="N", min=0, help="The number of records to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the kind, the contents and the damage of a file.

    The command takes any file of a store: event files (ongoing, completed, sorted), indexes, store.json, chunks.json,
    the preload file, the LMDB directory, and copies of torn tails. Of a whole data folder it reads only the headers. It
    changes nothing; a server may be running. The exit code is 1 if something is damaged.

    \b
    Example:
      eventstore inspect data/events/0000000001.events --records 3
    """
    from eventstore.cli.inspection import describe

    report = describe(file, records)
    if as_json:
        tables = {table.name: table.as_dicts() for table in report.tables}
        shown = {"file": str(file), "kind": report.kind, "fields": report.fields, "tables": tables}
        print_json({**shown, "damage": report.damage, "unchecked": report.unchecked})
    else:
        _print(file, report)
    if report.damage:
        raise typer.Exit(1)


def _print(file: Path, report: FileReport) -> None:
    print_line(f"{file}: {report.kind}")
    width = max(map(len, report.fields), default=0)
    for name, value in report.fields.items():
        print_line(f"  {name:{width}}  {_plain(value)}")
    for table in report.tables:
        print_table(table.title, table.columns, table.rows)
    for what in report.damage:
        print_line(f"  DAMAGED  {what}")
    if report.unchecked is not None:
        print_line(f"  {report.unchecked}")
    elif not report.damage:
        print("  no damage")


def _plain(value: object) -> str:
    return "–" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
