"""Prints events as they are appended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_event, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, Prefix, StoreAddress, Types

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.model import CaughtUp, Event

_SHOWN = 10


def tail(
    after: Annotated[
        int | None, typer.Option(metavar="SEQUENCE", min=0, help="Begin after this sequence. [10 events before the end]")
    ] = None,
    types: Types = None,
    prefix: Prefix = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new events, or end at the last one.")] = True,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print events as they are appended.

    In commit order: some stored events first, then new ones. Prints a note to standard error when all stored events
    were shown.

    \b
    Example:
      eventstore tail --after 0 --type OrderPlaced --type OrderPaid
    """
    import sys

    from eventstore import blocking
    from eventstore.cli.transfer.event_lines import format_event
    from eventstore.model import Event

    with blocking.connect(store, name="eventstore tail") as connected:
        if after is None:
            after = max(0, int(connected.stats()["events"] or 0) - _SHOWN)
        for item in _items(connected, after, types, prefix, follow):
            if not isinstance(item, Event):
                sys.stdout.flush()
                print_note(f"caught up at sequence {item.sequence}; waiting for more (Ctrl-C ends)")
            elif as_json:
                print(format_event(item), flush=follow)
            else:
                print_event(item, with_aggregate=True)
                sys.stdout.flush() if follow else None


def _items(
    store: BlockingStore, after: int, types: list[str] | None, prefix: str | None, follow: bool
) -> Iterator[Event | CaughtUp]:  # fmt: skip
    if follow:
        return store.subscribe(after, types or None, prefix)
    return store.read_all(after, types or None, prefix)
