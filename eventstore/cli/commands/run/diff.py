"""Compares the rows of two tables of a projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.model import Event


def diff(
    projection: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The projection, such as bank:Balances.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="sqlite:FILE or postgresql://USER@HOST/DATABASE.")],
    against: Annotated[
        int | None,
        typer.Option(metavar="VERSION", help="Compare with the table of this version; without it, that of MODULE:NAME."),
    ] = None,
    events: Annotated[bool, typer.Option("--events/--no-events", help="Show the latest events of the rows shown.")] = True,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Compare two versions of a table of a projection.

    `eventstore project --beside` builds that one; one that was exchanged is there for a while. Printed are how many rows differ
    in which way (only in one table, or in these columns), and up to three of each with their latest events. States are not
    compared. The exit code is 1 if anything differs.

    \b
    Example:
      eventstore diff bank:Balances --to sqlite:balances.db
      eventstore diff bank:Balances --against 1 --to sqlite:balances.db --no-events
    """
    import trio

    from eventstore.client.aio.store import connect
    from eventstore.domain.import_path import load_projection
    from eventstore.domain.projections.difference import events_of
    from eventstore.domain.projections.exchange import versioned
    from eventstore.domain.projections.targets.open import target_at
    from eventstore.domain.projections.targets.versions import table_of

    loaded = load_projection(projection)
    other = table_of(loaded.name, loaded.version if against is None else against)
    found = versioned(target_at(to)).difference(loaded, loaded.name, other)
    keys = [each.key for each in found.samples]

    async def latest() -> dict[str, list[Event]]:
        async with connect(store, name="eventstore diff") as connected:
            return await events_of(connected, loaded, keys)

    of_keys = trio.run(latest) if events and keys else {}
    if as_json:
        print_json(found.as_json(of_keys))
    else:
        for text in found.told(of_keys):
            print_line(text)
    if found.differs:
        raise typer.Exit(1)
