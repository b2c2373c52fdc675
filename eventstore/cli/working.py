"""`eventstore work`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.options import DEFAULT_STORE, WAIT_SECONDS, StoreAddress, Wait


def work(
    domain: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The domain that handles commands, such as bank:app.")],
    store: StoreAddress = DEFAULT_STORE,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where commands are taken.")] = "127.0.0.1:7711",
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /health there.")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run the domain's reactions here, and keep in this file how far they have come."),
    ] = None,
    wait: Wait = WAIT_SECONDS,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file with settings.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="console|json", help="Logs for people or programs.")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. [info]")] = None,
) -> None:
    """Handle commands of a domain in a process of its own, on a store elsewhere.

    Clients send their commands to the worker, and read from the store.

    \b
    Example:
      eventstore work --domain bank:app --store tcp://127.0.0.1:7701 --listen 127.0.0.1:7711
    """
    from eventstore.server.listening import run_to_end
    from eventstore.server.logs import configure_logs
    from eventstore.server.settings import load_settings
    from eventstore.server.work import run

    given = {"domain": domain, "listen": listen, "http": http, "log_format": log_format, "log_level": log_level}
    settings = load_settings(config, **given)
    configure_logs(settings.log_format, settings.log_level)
    run_to_end(partial(run, settings, store, checkpoint, wait))
