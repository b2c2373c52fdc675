"""Copies what can be read of a damaged data folder into a new store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.data_folder import opening
from eventstore.cli.terminal.output import meter, print_json, print_line
from eventstore.cli.terminal.shared_options import AsJson, ShowProgress
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.cli.transfer.salvage_run import Salvaged

_SHOWN = 50


def salvage(
    broken: Annotated[Path, typer.Argument(metavar="DATA", help="The damaged data folder; that of a shard, for a node.")],
    target: Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the new store; it must not exist.")],
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Copy what can be read of a damaged data folder.

    Use it when there is no backup and no replica. The new store has each aggregate up to its first lost event; versions,
    times and command ids are kept, sequences begin at 1 again. What is lost, and what is readable and left out because an
    event before it is lost, is listed. Topics, messages, and the checkpoints of reactions and the outbox are not copied.
    The damaged folder is not changed. The exit code is 0 if nothing is missing, 1 if something is, 2 if a folder cannot
    be opened.

    \b
    Example:
      eventstore salvage ./broken ./new
    """
    from dataclasses import asdict

    import trio

    from eventstore.cli.transfer.salvage_run import salvage as run

    with opening(broken), meter("salvage", False if as_json and progress is None else progress) as bar:
        done = trio.run(run, broken, target, lambda so_far, files, of: bar.update(files, of, counted(so_far.events, "event")))
    if as_json:
        print_json({**asdict(done), "whole": done.whole, "folder": str(target)})
    else:
        _print(done, target)
    if not done.whole:
        raise typer.Exit(1)


def _print(done: Salvaged, target: Path) -> None:
    print(
        f"{counted(done.events, 'event')} in {counted(done.commits, 'commit')} of {counted(done.aggregates, 'aggregate')} "
        f"are in {target}"
    )
    for title, lost in (("lost", done.damaged), ("left out", done.left_out)):
        for each in lost[:_SHOWN]:
            versions = f"version {each.first}" if each.first == each.last else f"versions {each.first} to {each.last}"
            place = f"{Path(each.file).name}, byte {each.offset}"
            print_line(f"  {title}: {each.aggregate_id} {versions}, from {place}: {each.why}")
        if len(lost) > _SHOWN:
            print(f"  … and {len(lost) - _SHOWN} more {title} (--json shows all)")
    for finding in done.faults[:_SHOWN]:
        print_line(f"  fault: {finding}")
    if done.faults_total > _SHOWN:
        print(f"  … and {done.faults_total - _SHOWN} more faults")
    if done.unknown:
        print(f"{counted(done.unknown, 'damaged place')} in files without a sound index: which events they held is not known")
    if done.parted:
        commits = counted(done.parted, "commit of several aggregates is", "commits of several aggregates are")
        print(f"{commits} there in part")
    print("nothing is missing" if done.whole else f"what is listed is not in {target}")
