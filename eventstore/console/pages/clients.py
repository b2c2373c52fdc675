"""Who is connected: producers, consumers and readers, from where, since when, and what they do."""

from __future__ import annotations

from typing import Final

import trio
from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, route
from eventstore.flat import Scalar
from eventstore.security.permissions import Permission, denied

_ROWS_MAX: Final = 100


def client_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/clients", _clients)]


async def _clients(visit: Visit) -> Response:
    skip, ask = visit.number("skip") or 0, visit.console.subject.clients
    if not visit.may(Permission.STATS):
        raise denied(Permission.STATS)
    found = None if ask is None else await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
    more = link("/clients", skip=skip + _ROWS_MAX) if found is not None and len(found) > skip + _ROWS_MAX else None
    rows = None if found is None else found[skip : skip + _ROWS_MAX]
    return visit.page("clients.html", rows=rows, count_of_all=len(found or ()), more=more, end=await visit.ask(_end))


async def _end(store: NetworkStore) -> Scalar:
    """Returns how many events there are: what a subscription that lags is behind."""
    return (await store.stats()).get("events")
