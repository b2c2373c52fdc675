"""Restores a backup into a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.terminal.output import meter, print_json, print_line
from eventstore.cli.terminal.shared_options import AsJson, Prefix, ShowProgress
from eventstore.fields import counted


def restore(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A folder with a backup, or s3://BUCKET/PREFIX.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The data folder to be made; it must not exist.")],
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="PLACE",
            help="End with this sequence or position, or before the first event of a later time; ISO 8601 with a zone.",
        ),
    ] = None,
    broker: Annotated[bool, typer.Option("--broker/--no-broker", help="Topics, groups and messages, too.")] = True,
    shard: Annotated[
        int | None, typer.Option("--shard", metavar="N", min=0, help="Make a store of its own of this shard of a cluster.")
    ] = None,
    prefix: Prefix = None,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a folder that does not exist.

    Every record is verified. The store is the one that was backed up, with a history of its own from its end on: an event of
    the server's own is added there, so readers, projections and reactions that stand after it are refused as Diverged. With
    --until, the checkpoints of reactions and the outbox and the broker are left out, since those of the backup are of its end.
    With --shard or --prefix the events go into a new store with sequences of its own. A backup of a cluster is restored into
    the folder of a node without replicas, which `eventstore cluster adopt` makes the first of several.

    \b
    Example:
      eventstore restore /mnt/backups/shop ./data
      eventstore restore /mnt/backups/shop ./data --until 2026-11-28T12:00Z
      eventstore restore /mnt/backups/shop ./one --prefix order-42
    """
    from eventstore.cli.transfer.restore_run import RestoreOptions
    from eventstore.cli.transfer.restore_run import restore as run

    options = RestoreOptions(place, data, until, broker=broker, shard=shard, prefix=prefix)
    with meter("restore", False if as_json and progress is None else progress) as bar:
        done = run(options, lambda so_far: bar.update(so_far.written_bytes, so_far.total_bytes or None, ""))
    if as_json:
        print_json({"folder": str(data), "events": done.events, "ends": {str(n): str(end) for n, end in done.ends.items()}})
    else:
        print_line(f"{data}: {counted(done.events, 'event')}, up to {done.words}, from backup {done.number} in {place}")
