"""`eventstore inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.options import AsJson
from eventstore.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from eventstore.cli.inspection import Facts


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of a data folder, or the folder itself.")],
    records: Annotated[int, typer.Option(metavar="N", min=0, help="Show so many of its records.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say what a file is, what it holds, and what is damaged.

    Any file of ours: event files (ongoing, completed, sorted), indexes, store.json, chunks.json, the preload file, the
    LMDB directory, copies of torn tails, and whole data folders, of which only headers are read. Changes nothing; a
    server may be running. The exit code is 1 if something is damaged.

    \b
    Example:
      eventstore inspect data/events/0000000001.events --records 3
    """
    from eventstore.cli.inspection import describe

    facts = describe(file, records)
    if as_json:
        tables = {table.name: table.as_dicts() for table in facts.tables}
        known = {"file": str(file), "kind": facts.kind, "fields": facts.fields, "tables": tables}
        print_json({**known, "damage": facts.damage, "unchecked": facts.unchecked})
    else:
        _print(file, facts)
    if facts.damage:
        raise typer.Exit(1)


def _print(file: Path, facts: Facts) -> None:
    print_line(f"{file}: {facts.kind}")
    width = max(map(len, facts.fields), default=0)
    for name, value in facts.fields.items():
        print_line(f"  {name:{width}}  {_plain(value)}")
    for table in facts.tables:
        print_table(table.title, table.columns, table.rows)
    for what in facts.damage:
        print_line(f"  DAMAGED  {what}")
    if facts.unchecked is not None:
        print_line(f"  {facts.unchecked}")
    elif not facts.damage:
        print("  no damage")


def _plain(value: object) -> str:
    return "–" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
