"""Lists the projections of connected projectors, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.cli.terminal.output import print_line
from eventstore.cli.terminal.paging import print_rows_of_shards
from eventstore.cli.terminal.shard_rows import print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.protocol.reaction_info import ProjectionInfo


def projections(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the projections of connected projectors.

    The list has each projection's address, position, lag, age of the oldest event that the table lacks, and parked keys. The
    projectors report these every few seconds. In a cluster, each has a row for each shard. The exit code is 1 if a shard does
    not answer.

    \b
    Example:
      eventstore projections
    """
    print_rows_of_shards(store, "projections", lambda each, skip: each.projections(skip), _print_table, as_json=as_json)


def _print_table(found: list[ProjectionInfo]) -> None:
    if not found:
        print_line("no projector is connected; `eventstore project` runs one")
        return
    columns = ("projection", "address", "position", "lag", "age", "parked")
    rows = [(*each[:4], f"{each.lag_microseconds / 1e6:.1f} s", each.parked) for each in found]
    print_rows(columns, rows, [each.shard for each in found])
