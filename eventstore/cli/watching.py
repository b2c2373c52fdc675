"""`eventstore top`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.cli.snapshot import Snapshot
    from eventstore.client.blocking import BlockingStore


def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    queues: Annotated[bool, typer.Option("--queues", help="Every queue, not only their sums by topic.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Watch a running server: events, topics, consumer groups, chunks, and what comes and goes a second.

    Where the output is no terminal, it looks once. With --json it prints a line for each look.

    \b
    Example:
      eventstore top --interval 2
    """
    import sys

    from eventstore import blocking
    from eventstore.cli.snapshot import take_snapshot

    with blocking.connect(store, name="eventstore top") as connected:
        before = take_snapshot(connected, None)
        if as_json:
            _print_lines(connected, before, interval, once)
        elif once or not sys.stdout.isatty():
            from eventstore.cli.dashboard import print_dashboard

            time.sleep(interval)
            print_dashboard(take_snapshot(connected, before), store, with_queues=queues)
        else:
            _watch(connected, before, interval, store, queues)


def _print_lines(store: BlockingStore, before: Snapshot, interval: float, once: bool) -> None:
    import json

    from eventstore.cli.snapshot import take_snapshot

    while True:
        time.sleep(interval)
        before = take_snapshot(store, before)
        print(json.dumps(before.tree(), ensure_ascii=False), flush=True)
        if once:
            return


def _watch(store: BlockingStore, snapshot: Snapshot, interval: float, address: str, queues: bool) -> None:
    from rich.live import Live

    from eventstore.cli.dashboard import dashboard
    from eventstore.cli.snapshot import take_snapshot

    with Live(dashboard(snapshot, address, with_queues=queues), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            snapshot = take_snapshot(store, snapshot)
            live.update(dashboard(snapshot, address, with_queues=queues), refresh=True)
