"""Reactions: how far each is, and what it has parked; and the projections of connected clients."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, route
from eventstore.security.permissions import Permission

_SHOWN: Final = 50


def reaction_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/reactions", _reactions)]


async def _reactions(visit: Visit) -> Response:
    name, skip = visit.asked("name"), visit.number("skip") or 0

    async def find(store: NetworkStore) -> dict[str, Any]:
        found = await store.reactions.progress()
        parked = await store.reactions.parked(name, skip) if name and may else []
        projections = await store.projections()
        return {
            "found": found,
            "projections": projections,
            "parked": parked[:_SHOWN],
            "more": len(parked) > _SHOWN,
            "several": bool(store.shards),
        }

    may = visit.may(Permission.REACTIONS, name)
    found = await visit.ask(find)
    more = link("/reactions", name=name, skip=skip + _SHOWN) if found.pop("more") else None
    return visit.page("reactions.html", **found, name=name, next_page=more, may_change=may, link=link)
