"""Prints the statistics of a running server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.output import moment, print_json, print_note, print_table
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.flat import Scalar

_RETRY_SECONDS: Final = 0.1


def stats(
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for the server, or a node's shards.", show_default=False),
    ] = 0.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print the statistics of a running server.

    The statistics are grouped by subject; with --json they are one flat object. With --wait a script that starts a server can
    wait until the server, and all shards of a node, are up: the exit code is 0 then.

    \b
    Example:
      eventstore stats --json
    """
    stats = _waited_for(store, wait)
    if as_json:
        print_json(stats)
    else:
        for subject, figures in _by_subject(stats).items():
            print_table(subject, ("figure", "value"), [(name, _shown(name, value)) for name, value in figures.items()])
        if "shards" in stats:
            print_note("")  # apart from the last table
            print_note("this is a node; `eventstore cluster status` shows its shards, whose addresses have their figures")


def _shown(name: str, value: Scalar) -> Scalar:
    """Returns a figure as people read it, if that is not as a number."""
    if name == "process_id":
        return str(value)
    return moment(value * 1_000_000) if name == "process_start_time_seconds" and isinstance(value, int) else value


def _waited_for(store: str, wait: float) -> dict[str, Scalar]:
    """Returns the figures, once the server answers and, with `wait`, once all shards of a node serve, and its replicas work.

    Raises ConnectionLost.
    """
    from eventstore.errors import ConnectionLost

    until = time.monotonic() + wait
    while True:
        try:
            if wait:
                _check_node(store, wait)
            return _fetch_stats(store)
        except ConnectionLost:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)


def _check_node(store: str, wait: float) -> None:
    """Raises ConnectionLost if the server at this address does not answer, or is a node that lacks a shard or replica."""
    from eventstore.client.address import parse_addresses
    from eventstore.client.blocking.connection import BlockingConnection
    from eventstore.client.options import ClientOptions
    from eventstore.errors import ConnectionLost
    from eventstore.protocol.requests import Stats

    with BlockingConnection(parse_addresses(store), ClientOptions(name="eventstore stats")) as asked:
        own = asked.call(Stats())  # those of the node itself, also if it has one shard
    if "shards" not in own:
        return
    _check_shards(store, wait)
    up, shards = own.get("shards_up", own["shards"]), own["shards"]
    if up != shards:
        raise ConnectionLost(
            f"only {up!r} of the node's {shards!r} shards work within {wait:g} s: {own['attention']!s}; its log says more"
        )


def _check_shards(store: str, wait: float) -> None:
    """Raises ConnectionLost if a shard does not answer."""
    from eventstore.errors import ConnectionLost
    from eventstore_cluster.status import cluster_status

    missing = [each for each in cluster_status(store, 0.0).shards if each.error is not None]
    if missing:
        numbers = ", ".join(str(each.shard) for each in missing)
        which = f"shard {numbers} does" if len(missing) == 1 else f"shards {numbers} do"
        raise ConnectionLost(f"{which} not serve within {wait:g} s: {missing[0].error}; `eventstore cluster status` says more")


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

    with blocking.connect(store, name="eventstore stats", timeout=None) as connected:
        return connected.stats()
