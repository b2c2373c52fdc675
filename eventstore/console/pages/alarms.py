"""Alarms: each rule with its state, what is wrong, and until when it is silenced."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, route
from eventstore.security.permissions import Permission

_STATES: Final = ("raised", "pending", "quiet")


def alarm_page_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/alarms", _alarms)]


async def _alarms(visit: Visit) -> Response:
    async def find(store: NetworkStore) -> dict[str, Any]:
        found = await store.alarms.list()
        return {"alarms": sorted(found, key=lambda each: (_STATES.index(each.state), each.name, each.subject))}

    found = await visit.ask(find)
    may = {each.name for each in found["alarms"] if visit.may(Permission.ALARMS, each.name)}
    return visit.page("alarms.html", **found, may_change=may, may_test=visit.may(Permission.ALARMS), link=link)
