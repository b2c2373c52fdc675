"""Prints the statistics of a running server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.output import print_json, print_note, print_table
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.flat import Scalar

_RETRY_SECONDS: Final = 0.1


def stats(
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for the server.", show_default=False),
    ] = 0.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print the statistics of a running server.

    By subject; with --json as one flat object. With --wait, a script that starts a server can wait until it is up: the
    exit code is 0 then.

    \b
    Example:
      eventstore stats --json
    """
    from eventstore.errors import ConnectionLost

    until = time.monotonic() + wait
    while True:
        try:
            stats = _fetch_stats(store)
            break
        except ConnectionLost:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)
    if as_json:
        print_json(stats)
    else:
        for subject, figures in _by_subject(stats).items():
            print_table(subject, ("figure", "value"), figures.items())
        if "shards" in stats:
            print_note("this is a node; `eventstore cluster status` shows its shards, whose addresses have their figures")


def _by_subject(stats: dict[str, Scalar]) -> dict[str, dict[str, Scalar]]:
    """Returns the figures under the subjects of their declarations. A newer server may have figures that have none here."""
    from eventstore.server.metric_subjects import METRICS_BY_SUBJECT

    rest = dict(stats)
    found = {
        subject: {metric.name: rest.pop(metric.name) for metric in declared if metric.name in rest}
        for subject, declared in METRICS_BY_SUBJECT.items()
    }
    return {subject: figures for subject, figures in {**found, "Others": rest}.items() if figures}


def _fetch_stats(store: str) -> dict[str, Scalar]:
    from eventstore import blocking

    with blocking.connect(store, name="eventstore stats") as connected:
        return connected.stats()
