"""`eventstore rebuild`."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.options import DataFolder
from eventstore.cli.output import meter, print_error


def rebuild(
    data: DataFolder,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal]")
    ] = None,
) -> None:
    """Make everything derived anew from the event files.

    Sorts completed files that are not sorted, writes all indexes, the directory and the preload file. For a data folder
    that is not being served. May be interrupted at any point, and run again. Damaged event files are left as they are; the
    exit code is 1 then.

    \b
    Example:
      eventstore rebuild ./data
    """
    from eventstore.store.rebuilding import rebuild

    with meter("rebuild", progress) as bar:
        rebuilt = rebuild(data, lambda step, done, steps: bar.update(done, steps, step))
    print(
        f"{rebuilt.indexes} indexes written ({rebuilt.sorted_files} files sorted), {rebuilt.directory_aggregates:,} aggregates "
        f"in the directory, {rebuilt.preload_aggregates:,} in the preload file"
    )
    for what in rebuilt.failures:
        print_error(what)
    if rebuilt.failures:
        raise typer.Exit(1)
