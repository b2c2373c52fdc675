"""The overview: the figures of now, the charts of the last hour, and what an operator has to know."""

from __future__ import annotations

from typing import Any, Final

import trio
from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.charts import chart
from eventstore.console.console import Console, Visit, route
from eventstore.console.history import SERIES, Figures, Series
from eventstore.console.rendering import count, size, span
from eventstore.console.streaming import Updates, stream
from eventstore.flat import Scalar

_STATES: Final = (
    ("Events", "events", count),
    ("Event files", "event_files", count),
    ("of them sorted", "sorted_files", count),
    ("Aggregates in memory", "aggregates_in_memory", count),
    ("Connections", "connections", count),
    ("Subscriptions", "subscriptions", count),
    ("Waiting for the disk", "waiting_bytes", size),
    ("Version conflicts", "conflicts", count),
    ("Commands handled", "commands_handled", count),
    ("Reactions waiting", "reactions_waiting", count),
    ("Parked by reactions", "reactions_parked", count),
    ("Projections connected", "projections", count),
    ("Keys parked by projections", "projections_parked_keys", count),
    ("Projections are behind by", "projections_lag_microseconds", lambda value: span(value / 1_000_000)),
    ("Topics", "broker_topics", count),
    ("Groups", "broker_groups", count),
    ("Messages", "broker_messages", count),
    ("Longest in hand", "broker_oldest_in_hand_seconds", lambda value: f"{count(value)} s"),
    ("To be published", "publish_backlog", count),
    ("Parked by publishing", "publish_parked", count),
    ("Size of the disk", "disk_bytes", size),
)


def overview_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    drawn = Drawn(console)

    async def overview(visit: Visit) -> Response:
        await visit.ask(_permitted)
        return visit.page("overview.html", live=drawn.values())

    async def live(visit: Visit) -> Response:
        await visit.ask(_permitted)

        async def updates() -> Updates:
            while True:
                await console.history.next_look()
                await visit.ask(_permitted)
                yield "figures", drawn.text(visit)

        return stream(visit, updates())

    return [route(console, "", overview), route(console, "/live", live)]


async def _permitted(store: NetworkStore) -> dict[str, Scalar]:
    """Asks for figures. Raises PermissionDenied if the visitor may not see any."""
    with trio.fail_after(5):
        return await store.stats()


class Drawn:
    """The parts of a page that are drawn of a look at the figures, once for all visitors."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn_of: Figures | None = None
        self._values: dict[str, Any] = {}
        self._text = ""

    def values(self) -> dict[str, Any]:
        history = self._console.history
        if self._drawn_of is not history.latest or not self._values:
            found = history.latest
            self._drawn_of, self._text = found, ""
            self._values = {
                "charts": [self._chart(each) for each in SERIES if history.values[each.name]],
                "figures": [(title, shown(found[name])) for title, name, shown in _STATES if found.get(name) is not None],
                "warnings": _warnings(found),
                "until_full": history.seconds_until_full,
            }
        return self._values

    def text(self, visit: Visit) -> str:
        values = self.values()
        self._text = self._text or visit.part("live.html", live=values)
        return self._text

    def _chart(self, series: Series) -> dict[str, Any]:
        history = self._console.history
        points = history.values[series.name]
        shown = size if series.unit == "bytes" else count
        unit = "" if series.unit in ("", "bytes") else f" {series.unit}"
        now, top = points[-1], max((each for each in points if each == each), default=float("nan"))
        text, most = f"{shown(now)}{unit}", f"{shown(top)}{unit}"
        label = f"{series.title} in the last hour: now {text}, at most {most}"
        return {"title": series.title, "now": text, "most": most, "svg": chart(history.times, points, label)}


def _warnings(found: Figures) -> list[str]:
    """Returns what an operator has to know."""
    said = [str(found[name]) for name in ("attention", "reactions_failure") if found.get(name)]
    troubles = found.get("troubles")
    if isinstance(troubles, dict):
        said += [f"shard {shard}: {trouble}" for shard, trouble in troubles.items()]
    alarms = found.get("alarms")
    if isinstance(alarms, str) and alarms:
        said.append(f"alarms: {alarms}")
    return list(dict.fromkeys(said))
