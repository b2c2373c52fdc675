"""Lists who is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from eventstore.cli.terminal.output import moment, print_json, print_note
from eventstore.cli.terminal.paging import all_rows
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import ConnectionLost

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.client.session.server_info import ClientInfo


def clients(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the clients that are connected.

    From where, since when, what they send to, consume and subscribe to, their last request, bytes of answers not read yet.
    Of a cluster, those of each shard: a client is connected to all that it uses. The exit code is 1 if one does not answer.

    \b
    Example:
      eventstore clients
    """
    from eventstore import blocking

    with blocking.connect(store, name="eventstore clients", reconnect_timeout=0) as connected:
        found, silent = _of_all(connected)
    if as_json:
        print_json([members_of(each) for each in found])
    else:
        _print_table(found)
    if silent:
        raise typer.Exit(1)


def _of_all(store: BlockingStore) -> tuple[list[ClientInfo], bool]:
    """Returns the clients of all shards, and whether one has not answered, which is said."""
    if not store.shards:
        return list(all_rows(store.clients)), False
    found: list[ClientInfo] = []
    silent = False
    for shard, each in store.shards.items():
        try:
            found += [row._replace(shard=shard) for row in all_rows(each.clients)]
        except ConnectionLost as error:
            silent = True
            print_note(f"shard {shard} is left out: {error.message}")
    return found, silent


def _print_table(found: list[ClientInfo]) -> None:
    columns = ("client", "identity", "address", "since", "does", "last request", "not read yet")
    print_rows(columns, [_shown(each) for each in found], [each.shard for each in found])


def _shown(client: ClientInfo) -> tuple[object, ...]:
    does = client.does.replace("\n", ", ")
    return client.name, client.identity, client.address, moment(client.since), does, client.last_request, client.unsent_bytes
