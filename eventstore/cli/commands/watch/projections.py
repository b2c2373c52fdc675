"""Lists projections and workers, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_line
from eventstore.cli.terminal.paging import print_rows_of_shards
from eventstore.cli.terminal.shard_rows import print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.protocol.reaction_info import ProjectionInfo


def projections(
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take this projection or worker, which has left for good, off the list.")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List projections and workers, and how far they are.

    The list has each projection's address, position, lag, age of the oldest event that the table lacks, parked keys, and when
    it was last seen: projectors and workers report every few seconds. One that has left stays in the list until it comes back,
    or the server is started again; its lag counts all events since. In a cluster, each has a row for each shard. The exit code
    is 1 if a shard does not answer.

    \b
    Example:
      eventstore projections
      eventstore projections --forget balances
    """
    if forget is not None:
        from eventstore import blocking

        with blocking.connect(store, name="eventstore projections", reconnect_timeout=0, timeout=None) as connected:
            connected.forget_projection(forget)
    print_rows_of_shards(store, "projections", lambda each, skip: each.projections(skip), _print_table, as_json=as_json)


def _seen(each: ProjectionInfo) -> str:
    return f"{each.silent_microseconds / 1e6:.0f} s ago{', has left' if each.has_left else ''}"


def _print_table(found: list[ProjectionInfo]) -> None:
    if not found:
        print_line("no projector or worker has connected; `eventstore project` runs a projector")
        return
    columns = ("projection", "address", "position", "lag", "age", "parked", "last seen")
    rows = [(*each[:4], f"{each.lag_microseconds / 1e6:.1f} s", each.parked, _seen(each)) for each in found]
    print_rows(columns, rows, [each.shard for each in found])
