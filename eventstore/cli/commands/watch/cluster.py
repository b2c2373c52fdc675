"""Shows the shards of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_json, print_table
from eventstore.cli.terminal.program import Command, command_group
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore_cluster.status import ShardRow

cluster = command_group("cluster", "The shards of a cluster.")
_COLUMNS = ("shard", "slots", "leader", "epoch", "events", "events/s", "resident", "sorted", "lag of reactions")
_MEGABYTE = 1_000_000


@cluster.command("status", cls=Command)
def status(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="The time that events/s is counted over.")] = 1.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Show each shard of a cluster: slots, leader, events, memory, sorted files, and how far its reactions are behind.

    --store is the address of a node or of any shard. The exit code is 1 if a shard cannot be reached.

    \b
    Example:
      eventstore cluster status --store tcp://127.0.0.1:7701
    """
    from eventstore_cluster.status import cluster_status

    found = cluster_status(store, interval)
    if as_json:
        print_json(found.tree())
    else:
        print_table(None, _COLUMNS, map(_cells, found.shards))
    if any(shard.error is not None for shard in found.shards):
        from eventstore.errors import ConnectionLost

        lost = [f"shard {shard.shard}: {shard.error}" for shard in found.shards if shard.error is not None]
        raise ConnectionLost("; ".join(lost) + "; the log of its node says why")


def _cells(row: ShardRow) -> tuple[object, ...]:
    return (
        row.shard, row.slots.replace("-", "–"), row.leader, row.epoch, row.events,
        None if row.events_a_second is None else round(row.events_a_second),
        None if row.resident_bytes is None else f"{row.resident_bytes / _MEGABYTE:.0f} MB",
        None if row.event_files is None else f"{row.sorted_files}/{row.event_files}",
        row.reactions_lag_events,
    )  # fmt: skip
