"""Prints events as they are appended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventstore.cli.terminal.output import print_event, print_note
from eventstore.cli.terminal.shared_options import (
    DEFAULT_STORE,
    Aggregate,
    AsJson,
    FromTime,
    Prefix,
    StoreAddress,
    ToTime,
    Types,
    event_filters,
    parse_after,
)
from eventstore.errors import InvalidArgument

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.model import CaughtUp, Event
    from eventstore.position import Position

_SHOWN = 10


def tail(
    after: Annotated[
        str | None,
        typer.Option(
            metavar="SEQUENCE",
            help="Begin after this sequence, or position; of shards a position. [10 events before the end]",
        ),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Begin at the end: only new events.")] = False,
    types: Types = None,
    prefix: Prefix = None,
    aggregate: Aggregate = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
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

    if end and (after is not None or not follow):
        what = "--no-follow" if after is None else "--after"
        raise InvalidArgument(f"--end shows new events alone, so it does not go with {what}", field="end")
    filters = event_filters(types, prefix, aggregate, from_time, to_time)

    with blocking.connect(store, name="eventstore tail") as connected:
        begin = None if after is None else parse_after(after)
        if begin is None and not end:
            begin = max(0, int(connected.stats().get("events") or 0) - _SHOWN)  # of several shards: from the first
        for item in _items(connected, begin, follow, filters):
            if not isinstance(item, Event):
                sys.stdout.flush()
                print_note(f"caught up at sequence {item.sequence}; waiting for more (Ctrl-C ends)")
            elif as_json:
                print(format_event(item), flush=follow)
            else:
                print_event(item, with_aggregate=True)
                sys.stdout.flush() if follow else None


def _items(
    store: BlockingStore, after: int | Position | None, follow: bool, filters: dict[str, Any]
) -> Iterator[Event | CaughtUp]:
    """Iterates over the events after this place; None: over new ones alone."""
    from eventstore.position import END

    if follow:
        return store.subscribe(END if after is None else after, **filters)
    return store.read_all(after or 0, **filters)
