"""`eventstore publish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.options import DEFAULT_STORE, WAIT_SECONDS, Wait
from eventstore.cli.output import counted, meter, print_line


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
    wait: Wait = WAIT_SECONDS,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal, with --until-caught-up]"),
    ] = None,
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

    sent, caught_up = 0, False

    async def run() -> None:
        nonlocal sent
        sent = await relay(
            source, target or source, topic, checkpoint,
            until_caught_up=until_caught_up, wait_s=wait, on_progress=advance,
        )  # fmt: skip

    with meter("publish", progress if until_caught_up or progress else False) as bar:
        configure_logs("console", "info")  # in here: the bar makes room for the lines that are written to its standard error

        def advance(place: int, last: int, published: int) -> None:
            nonlocal caught_up
            caught_up = place >= last
            bar.update(place, max(place, last), f"{counted(published, 'event')} published")

        run_to_end(run)
    print_line(f"{counted(sent, 'event')} published to topic {topic}")
    if until_caught_up and not caught_up:
        raise KeyboardInterrupt
