"""What belongs to an event: all that has its correlation id, from what began it to what followed."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, route
from eventstore.console.pages.aggregates import bounded, event_row, store_of
from eventstore.errors import InvalidArgument
from eventstore.model import Event

_EXAMINED_MAX: Final = 10_000
_BACK_US: Final = 60_000_000
"""What began a chain is looked for so long before the event; links lead further back."""


def chain_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/aggregates/chain", _chain)]


async def _chain(visit: Visit) -> Response:
    aggregate_id, version, shard = visit.asked("id"), visit.number("version") or 1, visit.number("shard")

    async def find(store: NetworkStore) -> tuple[Event, list[Event], int]:
        of = await bounded(store_of(store, aggregate_id, shard).read(aggregate_id, version, version), 1)
        if not of:
            raise InvalidArgument(f"there is no version {version} of {aggregate_id[:40]!r}", field="version", value=version)
        found, examined = await _belonging(store, of[0])
        return of[0], found, examined

    event, found, examined = await visit.ask(find)
    return visit.page("chain.html", event=event, rows=_indented(found), examined=examined, link=link)


async def _belonging(store: NetworkStore, event: Event) -> tuple[list[Event], int]:
    """Returns the events with its correlation id around it and after it, oldest first, and how many were looked at."""
    parts = list(store.shards.values()) or [store]
    each_max, correlation, found, examined = _EXAMINED_MAX // len(parts), event.correlation_id, list[Event](), 0
    for part in parts:
        near = await bounded(part.read_all(0, from_time=event.timestamp - _BACK_US, limit=each_max), each_max)
        examined += len(near)
        found += [each for each in near if each.correlation_id == correlation]
    if not any((each.aggregate_id, each.version) == (event.aggregate_id, event.version) for each in found):
        found.append(event)  # more than are looked at lie between
    return sorted(found, key=lambda each: (each.timestamp, each.sequence)), examined


def _indented(events: list[Event]) -> list[dict[str, Any]]:
    """Returns what a page shows, each event one step further in than the one that caused it."""
    depths: dict[str, int] = {}
    rows = []
    for each in events:
        depth = depths[f"{each.aggregate_id}/{each.version}"] = min(depths.get(each.causation_id, -1) + 1, 6)
        rows.append({**event_row(each), "depth": depth})
    return rows
