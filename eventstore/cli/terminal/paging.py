"""Asks for lists that a server answers in pages, and prints those that each of several shards answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from eventstore.cli.terminal.output import print_json, print_note
from eventstore.cli.terminal.shard_rows import members_of
from eventstore.errors import ConnectionLost

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.protocol.reaction_info import ProjectionInfo
    from eventstore.protocol.server_info import ClientInfo

_ROWS: Final = 1_000  # of a full page, of clients, projections, alarms and parked events alike
T = TypeVar("T")
OfShard = TypeVar("OfShard", "ClientInfo", "ProjectionInfo")


def all_rows(page_after: Callable[[int], Sequence[T]]) -> Iterator[T]:
    """Yields the rows of all pages. `page_after`: returns the page after the first so many rows."""
    for skip in count(0, _ROWS):
        page = page_after(skip)
        yield from page
        if len(page) < _ROWS:
            return


def print_rows_of_shards(
    store: str,
    what: str,
    page_after: Callable[[BlockingStore, int], Sequence[OfShard]],
    print_table: Callable[[list[OfShard]], None],
    *,
    as_json: bool,
) -> None:
    """Prints the rows of a store, or of all its shards. `what`: the name of the command. Raises Exit with 1 if a shard has not
    answered, which is said.
    """
    from eventstore import blocking

    with blocking.connect(store, name=f"eventstore {what}", reconnect_timeout=0, timeout=None) as connected:
        found, silent = _rows_of_shards(connected, page_after)
    if as_json:
        print_json([members_of(each) for each in found])
    else:
        print_table(found)
    if silent:
        raise typer.Exit(1)


def _rows_of_shards(
    store: BlockingStore, page_after: Callable[[BlockingStore, int], Sequence[OfShard]]
) -> tuple[list[OfShard], bool]:
    """Returns the rows of a store, or of all its shards, and whether one has not answered, which is said."""
    if not store.shards:
        return list(all_rows(partial(page_after, store))), False
    found: list[OfShard] = []
    silent = False
    for shard, each in store.shards.items():
        try:
            rows = list(all_rows(partial(page_after, each)))
        except ConnectionLost as error:
            silent = True
            print_note(f"shard {shard} is left out: {error.message}")
        else:
            found += [row._replace(shard=shard) for row in rows]
    return found, silent
