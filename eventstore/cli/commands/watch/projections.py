"""Lists the projections of connected projectors, and how far they are."""

from __future__ import annotations

import typer

from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.paging import rows_of_shards
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress


def projections(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the projections of connected projectors.

    From where, position, lag, age of the oldest event that the table lacks, parked keys: as the projectors say it, every few
    seconds. Of a cluster, how far each is in each shard. The exit code is 1 if one does not answer.

    \b
    Example:
      eventstore projections
    """
    from eventstore import blocking

    with blocking.connect(store, name="eventstore projections", reconnect_timeout=0) as connected:
        found, silent = rows_of_shards(connected, lambda each, skip: each.projections(skip))
    if as_json:
        print_json([members_of(each) for each in found])
    elif found:
        columns = ("projection", "address", "position", "lag", "age", "parked")
        rows = [(*each[:4], f"{each.lag_microseconds / 1e6:.1f} s", each.parked) for each in found]
        print_rows(columns, rows, [each.shard for each in found])
    else:
        print_line("no projector is connected; `eventstore project` runs one")
    if silent:
        raise typer.Exit(1)
