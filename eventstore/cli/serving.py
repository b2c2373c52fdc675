"""`eventstore serve`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eventstore.errors import InvalidArgument


def serve(
    data: Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The data folder; created. [./data]")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where clients connect. [127.0.0.1:7701]")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /health there.")] = None,
    domain: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="The domain that handles commands, such as bank:app.")
    ] = None,
    publish: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Send every event to this topic of the broker, as a message.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file with settings.")] = None,
    durability: Annotated[
        str | None, typer.Option(metavar="sync|async", help="sync: acknowledged means synced. async: synced every 100 ms.")
    ] = None,
    file_size_bytes: Annotated[int | None, typer.Option(metavar="N", help="Size of an event file. [512 MiB]")] = None,
    cached_bytes_max: Annotated[int | None, typer.Option(metavar="N", help="Memory for the version cache. [256 MiB]")] = None,
    connections_max: Annotated[int | None, typer.Option(metavar="N", help="More are turned away. [1000]")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="console|json", help="Logs for people or programs.")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. [info]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be given several times."),
    ] = None,
) -> None:
    """Serve a data folder until SIGTERM or Ctrl-C.

    What is not given here comes from the environment (EVENTSTORE_DATA, EVENTSTORE_LISTEN, …), then from the TOML
    file, then from the defaults.

    \b
    Example:
      eventstore serve --data ./data --listen 127.0.0.1:7701 --http 127.0.0.1:7702
    """
    import structlog

    from eventstore.server.listening import run_to_end
    from eventstore.server.logs import configure_logs
    from eventstore.server.serve import run
    from eventstore.server.settings import load_settings, misspelled_variables

    given = _parse(settings or [])
    named = {
        "data": data, "listen": listen, "http": http, "domain": domain, "publish": publish, "durability": durability,
        "file_size_bytes": file_size_bytes,
        "cached_bytes_max": cached_bytes_max, "connections_max": connections_max,
        "log_format": log_format, "log_level": log_level,
    }  # fmt: skip
    given.update({name: value for name, value in named.items() if value is not None})
    loaded = load_settings(config, **given)
    configure_logs(loaded.log_format, loaded.log_level)
    for name, meant in misspelled_variables().items():
        structlog.get_logger("eventstore.server").warning(
            "a variable of the environment is no setting", variable=name, did_you_mean=meant
        )
    run_to_end(partial(run, loaded))


def _parse(assignments: list[str]) -> dict[str, object]:
    """NAME=VALUE as a dict; pydantic makes numbers of the texts."""
    given: dict[str, object] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArgument(f"--set {text!r} is not of the form NAME=VALUE", field="set", value=text)
        given[name.strip().replace("-", "_")] = value.strip()
    return given
