"""Who is connected: producers, consumers and readers, from where, since when, and what they do."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import SHARDS_MAX, Console, Visit, link, of_shards, route
from eventstore.security.permissions import Permission, denied

_ROWS_MAX: Final = 100


def client_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/clients", _clients)]


async def _clients(visit: Visit) -> Response:
    skip = visit.number("skip") or 0
    if not visit.may(Permission.STATS):
        raise denied(Permission.STATS)

    async def find(store: NetworkStore) -> dict[str, Any]:
        """Returns clients from `skip` on, of several shards as many of each, and the end of a log that is one."""
        if not store.shards:
            found, end = {None: await store.clients(skip, _ROWS_MAX + 1)}, (await store.stats()).get("events")
            return {"found": found, "end": end, "silent": []}
        answers = await of_shards(store, lambda shard: shard.clients(skip, _ROWS_MAX + 1))
        return {
            "found": answers,
            "end": None,
            "silent": [each for each in sorted(store.shards)[:SHARDS_MAX] if each not in answers],
        }

    asked = await visit.ask(find)
    found = asked.pop("found")
    rows = [each._replace(shard=shard) for shard, clients in found.items() for each in clients[:_ROWS_MAX]]
    more = link("/clients", skip=skip + _ROWS_MAX) if any(len(clients) > _ROWS_MAX for clients in found.values()) else None
    return visit.page("clients.html", **asked, rows=rows, several=None not in found, more=more)
