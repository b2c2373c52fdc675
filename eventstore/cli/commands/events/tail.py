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
    Tags,
    ToTime,
    Types,
    event_filters,
    last_sequence,
    parse_place,
)
from eventstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.client.blocking.routing import BlockingMergedEvents, BlockingMergedSubscription
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.client.blocking.streams import BlockingLogStream, BlockingSubscriptionStream
    from eventstore.model import CaughtUp, Event
    from eventstore.position import Position

    Items: TypeAlias = (
        "BlockingLogStream | BlockingMergedEvents | BlockingSubscriptionStream | BlockingMergedSubscription | _ShardsByTime"
    )

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
    tags: Tags = None,
    prefix: Prefix = None,
    aggregate: Aggregate = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    backwards: Annotated[
        bool, typer.Option("--backwards", help="Stored events alone, the newest first; of shards by their time.")
    ] = False,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="SEQUENCE",
            help="With --backwards, begin before this sequence, or position; of shards a position. [the end]",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most this many events, then end.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new events, or end at the last one.")] = True,
    position: AtPosition = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print events as they are appended.

    The command prints some stored events first, then new ones, in commit order; of a node's shards, #5@1 is event 5 of
    shard 1. It prints a note to standard error when all stored events were shown. With --position the last line on
    standard error is the position after the last printed event, also after Ctrl-C; --after takes it, with --backwards
    --before.

    \b
    Example:
      eventstore tail --after 0 --type OrderPlaced --type OrderPaid
      eventstore tail --after 0 --tag course:c1 --no-follow
      eventstore tail --backwards --limit 20
    """
    import sys
    from itertools import islice

    from eventstore import blocking
    from eventstore.model import Event

    if end and (after is not None or not follow):
        what = "--no-follow" if after is None else "--after"
        raise InvalidArgument(f"--end shows new events alone, so it does not go with {what}", field="end")
    if before is not None and not backwards:
        raise InvalidArgument("--before is for --backwards; give both, or --after", field="before")
    if backwards and (after is not None or end):
        what = "--end" if after is None else "--after"
        raise InvalidArgument(f"--backwards ends at the oldest event, so it does not go with {what}", field="backwards")
    filters = event_filters(types, prefix, aggregate, from_time, to_time, tags)
    follow = follow and not backwards

    with blocking.connect(store, name="eventstore tail", timeout=None) as connected:
        items: Items
        if backwards:
            items = _newest_first(connected, None if before is None else parse_place("--before", before), limit, filters)
            reached = items.position if position else None
        else:
            begin = None if after is None else parse_place("--after", after)
            if isinstance(begin, int) and not follow:
                last_sequence(connected, begin)
            if begin is None and not end:
                begin = max(0, last_sequence(connected) - _SHOWN)  # of several shards: from the first
            items = _items(connected, begin, follow, filters)
            reached = None if begin is None or not position else items.position
        try:
            for item in islice(items, limit):
                if not isinstance(item, Event):
                    sys.stdout.flush()
                    print_note(f"caught up at {_place(items, item)}; waiting for more (Ctrl-C ends)")
                else:
                    print_event(item, _shard(items), with_aggregate=True, as_json=as_json)
                    sys.stdout.flush() if follow else None
                reached = items.position if position else None
        finally:
            if reached is not None:
                print_position(reached, as_json)


def _shard(items: Items) -> int | None:
    from eventstore.client.blocking.routing import BlockingMergedEvents, BlockingMergedSubscription

    return items.shard if isinstance(items, BlockingMergedEvents | BlockingMergedSubscription | _ShardsByTime) else None


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


def _newest_first(store: BlockingStore, before: int | Position | None, limit: int | None, filters: dict[str, Any]) -> Items:
    """Iterates backwards over the events before this place; None: over all."""
    if not store.shards:
        return store.read_all(backwards=True, before=before, limit=limit, **filters)
    return _ShardsByTime(store, before, limit, filters)


class _ShardsByTime:
    """The events of several shards, newest first: those of each in its order, merged by their times.

    Attributes:
        shard: of the last event.
    """

    shard: int

    def __init__(self, store: BlockingStore, before: int | Position | None, limit: int | None, filters: dict[str, Any]) -> None:
        from heapq import merge
        from itertools import repeat

        from eventstore.position import NEWEST, stored_starts

        self._map = store.cluster_map()
        self._starts = stored_starts(NEWEST if before is None else before, self._map, "before")
        self._last: dict[int, Event] = {}
        streams = [
            zip(repeat(number), each.read_all(backwards=True, before=self._starts[number], limit=limit, **filters))
            for number, each in store.shards.items()
        ]
        self._merged: Iterator[tuple[int, Event]] = merge(*streams, key=lambda found: -found[1].timestamp)

    def __iter__(self) -> Iterator[Event]:
        for shard, event in self._merged:
            self.shard, self._last[shard] = shard, event
            yield event

    @property
    def position(self) -> Position:
        """The place before which `--before` continues."""
        from eventstore.event_identity import LogPosition
        from eventstore.position import position_in

        return position_in(self._map, self._starts | {shard: LogPosition.at(event) for shard, event in self._last.items()})
