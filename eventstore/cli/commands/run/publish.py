"""Sends every event to a topic of the broker."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.terminal.output import Meter, meter, print_line
from eventstore.cli.terminal.settings_options import ConfigFile, offers_settings
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, WAIT_SECONDS, Wait
from eventstore.fields import counted


@offers_settings("Logs")
def publish(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The topic; created if it does not exist.")],
    source: Annotated[
        str,
        typer.Option("--from", metavar="tcp://HOST:PORT", envvar="EVENTSTORE_STORE", help="The server with the events."),
    ] = DEFAULT_STORE,
    target: Annotated[
        str | None, typer.Option("--to", metavar="tcp://HOST:PORT", help="The server with the topic. [as --from]")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the progress in this file, in case retention deletes the whole topic."),
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End after the last event, instead of following.")
    ] = False,
    past_lost: Annotated[
        bool,
        typer.Option("--past-lost", help="Continue although the topic has events that the restored store lacks."),
    ] = False,
    wait: Wait = WAIT_SECONDS,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal, with --until-caught-up]"),
    ] = None,
    config: ConfigFile = None,
    **given: object,
) -> None:
    """Send every event to a topic of the broker as a message.

    Each event is sent in order, at least once. `eventstore serve --publish TOPIC` does the same inside a server; use this
    command for a broker on another server. You can stop or kill it at any time: it continues where the topic ends.

    \b
    Example:
      eventstore publish --from tcp://127.0.0.1:7701 --to tcp://127.0.0.1:7801 --topic events
    """
    from eventstore.server.logs import configure_logs
    from eventstore.server.outbox.relay import relay
    from eventstore.settings.sources import load_settings

    settings = load_settings(config, **given)
    run = partial(
        relay, source, target or source, topic, checkpoint, until_caught_up=until_caught_up, past_lost=past_lost, wait_s=wait
    )
    with meter("publish", progress if until_caught_up or progress else False) as bar:
        configure_logs(settings.log_format, settings.log_level)  # in here: the bar makes room for lines on standard error
        sent, caught_up, ended_by = _relay(run, bar)
    print_line(f"{counted(sent, 'event')} published to topic {topic}")
    if ended_by == signal.SIGINT or (until_caught_up and not caught_up):
        raise KeyboardInterrupt


def _relay(run: Callable[..., Awaitable[int]], bar: Meter) -> tuple[int, bool, int | None]:
    """Runs to the end, or until a signal. Returns how many events were published, whether these were all, and the signal."""
    from eventstore.server.bootstrap import run_to_end

    sent, caught_up = 0, False
    heard: list[int] = []

    def advance(sequence: int, last: int, published: int) -> None:
        nonlocal caught_up
        caught_up = sequence >= last
        bar.update(sequence, max(sequence, last), f"{counted(published, 'event')} published")

    async def main() -> None:
        nonlocal sent
        sent = await run(on_progress=advance, on_signal=heard.append)

    run_to_end(main)
    return sent, caught_up, heard[0] if heard else None
