"""Lists the aggregates of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.aggregate_info import AggregateInfo
    from eventstore.client.blocking.store import BlockingStore


def list_(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only ids that begin with this text.", show_default=False)
    ] = "",
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only ids after this one, to continue a list.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most this many.")] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List the aggregates and their versions.

    The list is sorted by id, byte by byte.

    \b
    Example:
      eventstore list order- --limit 20
    """
    from itertools import islice

    from eventstore import blocking

    with blocking.connect(store, name="eventstore list", timeout=None) as connected:
        for each in islice(_all(connected, prefix, after), limit):
            if as_json:
                import json

                print(json.dumps(each._asdict(), ensure_ascii=False))
            else:
                print_line(f"{each.aggregate_id}  v{each.version}")


def _all(store: BlockingStore, prefix: str, after: str | None) -> Iterator[AggregateInfo]:
    while page := store.aggregates(prefix, after):
        yield from page
        after = page[-1].aggregate_id
