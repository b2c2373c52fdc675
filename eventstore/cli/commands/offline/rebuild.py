"""Rebuilds indexes, directory and preload file from the event files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.terminal.output import meter, print_error
from eventstore.cli.terminal.shared_options import DataFolder, ShowProgress
from eventstore.fields import counted


def rebuild(
    data: DataFolder,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's TOML file, for preload_aggregates."),
    ] = None,
    progress: ShowProgress = None,
) -> None:
    """Rebuild everything that is derived from event files.

    The command sorts completed files that are not sorted, and writes all indexes, the directory and the preload file.
    No server may serve the data folder. You can interrupt the command at any point, and run it again. It does not change
    damaged event files; the exit code is 1 then.

    \b
    Example:
      eventstore rebuild ./data
    """
    from eventstore.settings.sources import load_settings
    from eventstore.store.rebuild import rebuild

    preload_aggregates = load_settings(config).store_settings.preload_aggregates
    with meter("rebuild", progress) as bar:
        rebuilt = rebuild(data, lambda step, done, steps: bar.update(done, steps, step), preload_aggregates=preload_aggregates)
    print(
        f"{counted(rebuilt.indexes, 'index', 'indexes')} written ({counted(rebuilt.sorted_files, 'file')} sorted), "
        f"{counted(rebuilt.directory_aggregates, 'aggregate')} in the directory, "
        f"{rebuilt.preload_aggregates:,} in the preload file"
    )
    for what in rebuilt.failures:
        print_error(what)
    if rebuilt.failures:
        raise typer.Exit(1)
