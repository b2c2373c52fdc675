"""Makes a backup of a store, or reads one back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import meter, moment, print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, ShowProgress, StoreAddress
from eventstore.fields import counted, size_text

if TYPE_CHECKING:
    from eventstore.backup.checking import CheckedBackup
    from eventstore.cli.transfer.backup_run import BackupDone

_SHOWN = 50


def backup(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A folder, or s3://BUCKET/PREFIX.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="Read this data folder, or that of a node, stopped or not; may be given several times. [that of the server]",
        ),
    ] = None,
    incremental: Annotated[bool, typer.Option("--incremental", help="Only add to a backup that is there.")] = False,
    broker: Annotated[bool, typer.Option("--broker/--no-broker", help="Topics, groups and messages, too.")] = True,
    link: Annotated[
        bool,
        typer.Option(
            "--link", help="Hard links to sorted files, on the same file system: quick, and no protection against the disk."
        ),
    ] = False,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="The bytes a second that are read, such as 50MB. [no limit]")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Make none: read the one that is there back, and say how old it is.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Make none: tell the server that no more are made into this place.")
    ] = False,
    progress: ShowProgress = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Back up a store, also while it is served.

    It runs on the machine of the server, and reads its files; with --data also those of a stopped one. What is copied is
    verified meanwhile. A place holds one backup: a second one copies only what is new. The manifest is written last, so one
    that is interrupted leaves the one before it whole; run it again to continue. In a cluster, --data names the folders of
    nodes on this machine; of a shard with several replicas there, one that does not lead is read. With --check the exit
    code is 1 if something is missing or damaged.

    \b
    Example:
      eventstore backup /mnt/backups/shop
      eventstore backup /mnt/backups/shop --incremental --rate 50MB
      eventstore backup /mnt/backups/shop --check
    """
    from eventstore.cli.terminal.plan_table import sized
    from eventstore.cli.transfer import backup_run

    if forget:
        backup_run.forget(place, store)
    elif check:
        with meter("check", False if as_json and progress is None else progress) as bar:
            checked = backup_run.check(place, lambda done: bar.update(done.read_bytes, done.total_bytes, ""))
        _print_checked(checked, as_json=as_json)
        if checked.faults:
            raise typer.Exit(1)
    else:
        options = backup_run.BackupOptions(
            place,
            store,
            data or [],
            incremental=incremental,
            broker=broker,
            link=link,
            rate=None if rate is None else sized(rate),
        )
        with meter("backup", False if as_json and progress is None else progress) as bar:
            done = backup_run.backup(options, lambda so_far, words: bar.update(so_far.read_bytes, so_far.total_bytes, words))
        _print_done(done, as_json=as_json)


def _print_done(done: BackupDone, *, as_json: bool) -> None:
    if as_json:
        print_json(done.members())
        return
    print_line(
        f"{done.place}: backup {done.number} is whole, up to {done.position}; {counted(done.copied, 'object')} copied, "
        f"{counted(done.kept, 'object')} kept, {counted(done.deleted, 'object')} deleted; {size_text(done.read_bytes)} read in "
        f"{done.seconds:.1f} s"
    )
    if done.linked:
        print_line("sorted files are linked: no protection against the disk")


def _print_checked(checked: CheckedBackup, *, as_json: bool) -> None:
    from eventstore.cli.transfer.backup_run import age_seconds, ends_of

    manifest, age = checked.manifest, age_seconds(checked.manifest)
    if as_json:
        print_json(
            {
                "number": manifest.number,
                "taken": moment(manifest.taken),
                "age_seconds": age,
                "ends": {str(number): str(shard.end) for number, shard in manifest.shards.items()},
                "read_bytes": checked.read_bytes,
                "faults": checked.faults,
                "notes": checked.notes,
            }
        )
        return
    print_line(f"backup {manifest.number}, taken {moment(manifest.taken)}, {age:.0f} s ago, up to {ends_of(manifest)}")
    for title, found in (("fault", checked.faults), ("note", checked.notes)):
        for each in found[:_SHOWN]:
            print_line(f"  {title}: {each}")
        if len(found) > _SHOWN:
            print_line(f"  … and {len(found) - _SHOWN} more (--json shows all)")
    print_line(f"{size_text(checked.read_bytes)} read; {'no faults' if not checked.faults else 'make a new one elsewhere'}")
