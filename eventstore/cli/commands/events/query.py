"""Prints the events that a query matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_event, print_position
from eventstore.cli.terminal.program import GIVEN
from eventstore.cli.terminal.shared_options import (
    DEFAULT_STORE,
    After,
    AsJson,
    StoreAddress,
    Tags,
    Types,
    last_sequence,
    parse_place,
)
from eventstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventstore.query import Query


def query(
    context: typer.Context,
    tags: Tags = None,
    types: Types = None,
    or_: Annotated[
        bool, typer.Option("--or", help="What follows is another item: an event need pass only one of them.")
    ] = False,
    after: After = "0",
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most this many events.")] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print the events that a query matches.

    An event passes that has all tags and one of the types of an item. --or begins another item. Without tags and types
    every event passes.

    The last line on standard error is the position up to which the events were examined. --after continues there, and
    commit(…, unless=…, after=…) stores nothing if the query matches an event after it.

    \b
    Example:
      eventstore query --tag course:c1 --type CourseDefined --type Subscribed --or --tag student:s7
    """
    from eventstore import blocking
    from eventstore.client.blocking.routing import BlockingMergedEvents

    wanted = _query(context.meta[GIVEN], types or (), tags or ())
    begin = parse_place("--after", after)
    with blocking.connect(store, name="eventstore query", timeout=None) as connected:
        if isinstance(begin, int):
            last_sequence(connected, begin)
        found = connected.read_all(begin, limit=limit, query=wanted)
        for event in found:
            shard = found.shard if isinstance(found, BlockingMergedEvents) else None
            print_event(event, shard, with_aggregate=True, as_json=as_json)
        print_position(found.position, as_json)


def _query(given: Sequence[str], types: Iterable[str], tags: Iterable[str]) -> Query:
    """Returns the query. `given`: the parameters in their order, which says between which of them an --or stands."""
    from eventstore.query import Query

    left = {"types": iter(types), "tags": iter(tags)}
    items: list[dict[str, list[str]]] = [{}]
    for name in given:
        if name == "or_":
            items.append({})
        elif name in left:
            items[-1].setdefault(name, []).append(next(left[name]))
    if len(items) > 1 and {} in items:
        raise InvalidArgument("on one side of an --or there is neither --tag nor --type; give one", field="or")
    whole, *others = (Query(**each) for each in items)
    for other in others:
        whole |= other
    return whole
