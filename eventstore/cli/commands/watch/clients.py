"""Lists who is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.cli.terminal.output import moment
from eventstore.cli.terminal.paging import print_rows_of_shards
from eventstore.cli.terminal.shard_rows import print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.protocol.server_info import ClientInfo


def clients(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the clients that are connected.

    The list has each client's address, the time of its connection, the topics and aggregates that it uses, its last request,
    and the bytes of answers that it has not read yet. A client of a cluster is listed for each shard that it is connected to.
    The exit code is 1 if a shard does not answer.

    \b
    Example:
      eventstore clients
    """
    print_rows_of_shards(store, "clients", lambda each, skip: each.clients(skip), _print_table, as_json=as_json)


def _print_table(found: list[ClientInfo]) -> None:
    columns = ("client", "identity", "address", "since", "does", "last request", "not read yet")
    print_rows(columns, [_shown(each) for each in found], [each.shard for each in found])


def _shown(client: ClientInfo) -> tuple[object, ...]:
    does = client.does.replace("\n", ", ")
    return client.name, client.identity, client.address, moment(client.since), does, client.last_request, client.unsent_bytes
