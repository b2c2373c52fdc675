"""Shows the shards of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import make_table, print_json, print_table
from eventstore.cli.terminal.program import Command, command_group
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from rich.table import Table

    from eventstore_cluster.status import ClusterStatus, ShardRow

cluster = command_group("cluster", "The shards of a cluster.")
_COLUMNS = ("shard", "slots", "leader", "epoch", "events", "events/s", "resident", "sorted", "lag of reactions")
_MEGABYTE = 1_000_000


@cluster.command("status", cls=Command)
def status(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="The time that events/s is counted over.")] = 1.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Show each shard of a cluster: slots, leader, events, memory, sorted files, and the lag of its reactions.

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
    if lost := _lost(found):
        from eventstore.errors import ConnectionLost

        raise ConnectionLost(f"{lost}; the log of its node says why")


@cluster.command("top", cls=Command)
def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and exit.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Watch the shards of a cluster: what `cluster status` shows, again and again.

    Looks once if the output is not a terminal. With --json it prints a line for each look.

    \b
    Example:
      eventstore cluster top --interval 2
    """
    import json
    import sys

    from eventstore_cluster.status import cluster_status

    if as_json:
        while True:
            print(json.dumps(cluster_status(store, interval).tree()), flush=True)
            if once:
                return
    if once or not sys.stdout.isatty():
        print_table(None, _COLUMNS, map(_cells, cluster_status(store, interval).shards))
        return
    from rich.live import Live

    with Live(_drawn(cluster_status(store, 0)), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(cluster_status(store, interval)), refresh=True)


def _drawn(found: ClusterStatus) -> Table:
    return make_table(_lost(found), _COLUMNS, map(_cells, found.shards))


def _lost(found: ClusterStatus) -> str | None:
    """Returns which shards cannot be reached, and why; None if all can."""
    return "; ".join(f"shard {each.shard}: {each.error}" for each in found.shards if each.error is not None) or None


def _cells(row: ShardRow) -> tuple[object, ...]:
    return (
        row.shard, row.slots.replace("-", "–"), row.leader, row.epoch, row.events,
        None if row.events_a_second is None else round(row.events_a_second),
        None if row.resident_bytes is None else f"{row.resident_bytes / _MEGABYTE:.0f} MB",
        None if row.event_files is None else f"{row.sorted_files}/{row.event_files}",
        row.reactions_lag_events,
    )  # fmt: skip
