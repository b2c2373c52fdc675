"""Handles commands of a domain in a process of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, all_given, offers_settings
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, WAIT_SECONDS, StoreAddress, Wait


@offers_settings("Mailboxes", "Limits", "Timeouts", "Security", "Logs", names=("http",))
def work(
    domain: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The domain that handles commands, such as bank:app.")],
    store: StoreAddress = DEFAULT_STORE,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients send commands to.")] = "127.0.0.1:7711",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Run the domain's reactions here and publish what it says; progress is in this file (or one a shard).",
        ),
    ] = None,
    snapshots: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep snapshots of long aggregates in this folder, which no other worker uses."),
    ] = None,
    wait: Wait = WAIT_SECONDS,
    config: ConfigFile = None,
    assignments: Assignments = None,
    **given: object,
) -> None:
    """Handle the commands of a domain in a process of its own.

    Clients send their commands to the worker, and read from the store.

    \b
    Example:
      eventstore work --domain bank:app --store tcp://127.0.0.1:7701 --listen 127.0.0.1:7711
    """
    from eventstore.server.bootstrap import run_to_end
    from eventstore.server.logs import configure_logs
    from eventstore.server.work.worker import run
    from eventstore.settings.sources import load_settings

    settings = load_settings(config, **{**all_given(assignments, given), "domain": domain, "listen": listen})
    configure_logs(settings.log_format, settings.log_level)
    run_to_end(partial(run, settings, store, checkpoint, wait, snapshots))
