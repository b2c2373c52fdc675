"""Timers: what is sent later, and what is parked."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, route
from eventstore.security.permissions import Permission

_SHOWN: Final = 50


def timer_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/timers", _timers)]


async def _timers(visit: Visit) -> Response:
    owner, skip = visit.asked("id"), visit.number("skip") or 0

    async def find(store: NetworkStore) -> dict[str, Any]:
        found = await store.timers(skip, owner or None)
        return {"found": found[:_SHOWN], "more": len(found) > _SHOWN, "several": bool(store.shards)}

    found = await visit.ask(find)
    more = link("/timers", id=owner, skip=skip + _SHOWN) if found.pop("more") else None
    may_change = visit.may(Permission.TIMERS, owner)
    return visit.page("timers.html", **found, owner=owner, next_page=more, may_change=may_change, link=link)
