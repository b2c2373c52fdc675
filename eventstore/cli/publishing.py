"""`eventstore publish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.options import DEFAULT_STORE
from eventstore.cli.output import counted, print_line


def publish(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Where to; created if it is not there.")],
    source: Annotated[
        str,
        typer.Option("--from", metavar="tcp://HOST:PORT", envvar="EVENTSTORE_STORE", help="The server that has the events."),
    ] = DEFAULT_STORE,
    target: Annotated[
        str | None, typer.Option("--to", metavar="tcp://HOST:PORT", help="The server that has the topic. [the same]")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep here how far it is, for when retention has deleted all of the topic."),
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when what is stored now is published.")
    ] = False,
) -> None:
    """Send every event to a topic of the broker, as a message, in order, at least once.

    A server does so by itself with `eventstore serve --publish TOPIC`; this is for a broker on another server. It may be
    stopped and killed at any time, and goes on where the topic ends.

    \b
    Example:
      eventstore publish --from tcp://127.0.0.1:7701 --to tcp://127.0.0.1:7801 --topic events
    """
    from eventstore.server.listening import run_to_end
    from eventstore.server.logs import configure_logs
    from eventstore.server.relaying import relay

    configure_logs("console", "info")
    counts: list[int] = []

    async def run() -> None:
        counts.append(await relay(source, target or source, topic, checkpoint, until_caught_up=until_caught_up))

    run_to_end(run)
    print_line(f"{counted(counts[0], 'event')} published to topic {topic}")
