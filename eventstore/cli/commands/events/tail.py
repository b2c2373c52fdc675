"""Prints events as they are appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from eventstore.cli.terminal.output import ends_text, print_event, print_note, print_position
from eventstore.cli.terminal.shared_options import (
    DEFAULT_STORE,
    Aggregate,
    AsJson,
    AtPosition,
    FromTime,
    Prefix,
    StoreAddress,
    ToTime,
    Types,
    event_filters,
    last_sequence,
    parse_after,
)
from eventstore.errors import InvalidArgument

if TYPE_CHECKING:
    from eventstore.client.blocking.routing import BlockingMergedEvents, BlockingMergedSubscription
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.client.blocking.streams import BlockingLogStream, BlockingSubscriptionStream
    from eventstore.model import CaughtUp
    from eventstore.position import Position

    Items: TypeAlias = BlockingLogStream | BlockingMergedEvents | BlockingSubscriptionStream | BlockingMergedSubscription

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
    position: AtPosition = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print events as they are appended.

    The command prints some stored events first, then new ones, in commit order; of a node's shards, #5@1 is event 5 of
    shard 1. It prints a note to standard error when all stored events were shown. With --position the last line on
    standard error is the position after the last printed event, also after Ctrl-C; --after takes it.

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

    with blocking.connect(store, name="eventstore tail", timeout=None) as connected:
        begin = None if after is None else parse_after(after)
        if isinstance(begin, int) and not follow:
            last_sequence(connected, begin)
        if begin is None and not end:
            begin = max(0, last_sequence(connected) - _SHOWN)  # of several shards: from the first
        items = _items(connected, begin, follow, filters)
        reached = None if begin is None or not position else items.position
        try:
            for item in items:
                if not isinstance(item, Event):
                    sys.stdout.flush()
                    print_note(f"caught up at {_place(items, item)}; waiting for more (Ctrl-C ends)")
                elif as_json:
                    print(format_event(item, _shard(items)), flush=follow)
                else:
                    print_event(item, _shard(items), with_aggregate=True)
                    sys.stdout.flush() if follow else None
                reached = items.position if position else None
        finally:
            if reached is not None:
                print_position(reached, as_json)


def _shard(items: Items) -> int | None:
    from eventstore.client.blocking.routing import BlockingMergedEvents, BlockingMergedSubscription

    return items.shard if isinstance(items, BlockingMergedEvents | BlockingMergedSubscription) else None


def _place(items: Items, caught_up: CaughtUp) -> str:
    from eventstore.client.blocking.routing import BlockingMergedSubscription

    if not isinstance(items, BlockingMergedSubscription):
        return f"sequence {caught_up.sequence}"
    return ends_text({shard: sequence for shard, (sequence, _) in items.position.shards.items()})


def _items(store: BlockingStore, after: int | Position | None, follow: bool, filters: dict[str, Any]) -> Items:
    """Iterates over the events after this place; None: over new ones alone."""
    from eventstore.position import END

    if follow:
        return store.subscribe(END if after is None else after, **filters)
    return store.read_all(after or 0, **filters)
