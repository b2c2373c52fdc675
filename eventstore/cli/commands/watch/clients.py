"""Lists who is connected."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Final

from eventstore.cli.terminal.output import print_json
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.client.session.server_info import ClientInfo

_PAGE: Final = 1_000


def clients(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the clients that are connected.

    From where, since when, what they send to, consume and subscribe to, their last request, bytes of answers not read yet.
    Of a cluster, those of each shard: a client is connected to all that it uses.

    \b
    Example:
      eventstore clients
    """
    from eventstore import blocking

    with blocking.connect(store, name="eventstore clients", reconnect_timeout=0) as connected:
        of_shards = connected.shards.items() or [(None, connected)]
        found = [row._replace(shard=shard) for shard, each in of_shards for row in _all(each)]
    if as_json:
        print_json([members_of(each) for each in found])
        return
    columns = ("client", "identity", "address", "since", "does", "last request", "not read yet")
    print_rows(columns, [_shown(each) for each in found], [each.shard for each in found])


def _all(store: BlockingStore) -> list[ClientInfo]:
    found: list[ClientInfo] = []
    for skip in count(0, _PAGE):
        page = store.clients(skip)
        found += page
        if len(page) < _PAGE:
            break
    return found


def _shown(client: ClientInfo) -> tuple[object, ...]:
    since = f"{datetime.fromtimestamp(client.since / 1e6, UTC):%FT%TZ}"
    does = client.does.replace("\n", ", ")
    return client.name, client.identity, client.address, since, does, client.last_request, client.unsent_bytes
