"""Serves the shards of a folder, each in a process of its own, until stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, all_given, offers_settings


@offers_settings()
def node(
    shards: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many shards the folder has; a new one gets as many. [those it has, or 1]"),
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    **given: object,
) -> None:
    """Serve the shards of a folder until SIGTERM or Ctrl-C.

    Each shard has a process of its own, with the settings of `serve`. --listen tells clients where the shards are: on the
    ports from ten above it on, or on free ones if it is 0. A program connects to the shard that owns an aggregate's slot:
    nothing is forwarded.

    \b
    Example:
      eventstore node --data ./data --shards 4
      eventstore cluster status
    """
    import json
    import os
    import sys

    from eventstore.settings.sources import load_with_origins, misspelled_variables

    loaded = load_with_origins(config, **all_given(assignments, given))
    options = {"settings": loaded.values, "shards": shards, "misspelled": misspelled_variables()}
    # The node lives long: it is to be small, and the libraries of the command line are not.
    os.execv(sys.executable, [sys.executable, "-m", "eventstore_cluster.node", json.dumps(options, default=str)])
