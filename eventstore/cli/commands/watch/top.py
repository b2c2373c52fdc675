"""Watches a running server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.cli.dashboard.server_snapshot import ServerSnapshot
    from eventstore.client.blocking.store import BlockingStore

_RECONNECT_S: Final = 5.0


def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two snapshots.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    queues: Annotated[bool, typer.Option("--queues", help="Show every queue, not only the sums by topic.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Watch a running server: events, reactions, messages.

    The command prints one snapshot if the output is not a terminal. With --json it prints a line for each snapshot.

    \b
    Example:
      eventstore top --interval 2
    """
    import sys

    from eventstore import blocking

    with blocking.connect(store, name="eventstore top", reconnect_timeout=_RECONNECT_S, timeout=None) as connected:
        looks = _looks(connected, interval)
        if as_json:
            _print_lines(looks, once)
        elif once or not sys.stdout.isatty():
            from eventstore.cli.dashboard.dashboard import print_dashboard

            next(looks)
            print_dashboard(next(looks), store, with_queues=queues)
        else:
            _watch(looks, store, queues)


def _looks(store: BlockingStore, interval: float) -> Iterator[ServerSnapshot]:
    """Yields a snapshot at once, which has no rates, and one after each interval."""
    from eventstore.cli.dashboard.server_snapshot import take_snapshot

    snapshot = None
    while True:
        snapshot = take_snapshot(store, snapshot)
        yield snapshot
        time.sleep(interval)


def _print_lines(looks: Iterator[ServerSnapshot], once: bool) -> None:
    import json

    next(looks)
    for snapshot in looks:
        print(json.dumps(snapshot.tree(), ensure_ascii=False), flush=True)
        if once:
            return


def _watch(looks: Iterator[ServerSnapshot], address: str, queues: bool) -> None:
    from rich.live import Live

    from eventstore.cli.dashboard.dashboard import dashboard

    with Live(dashboard(next(looks), address, with_queues=queues), screen=True, auto_refresh=False) as live:
        for snapshot in looks:
            live.update(dashboard(snapshot, address, with_queues=queues), refresh=True)
