"""Features: what a process that serves is made of. A server, a worker and a projector are lists of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import trio

from eventstore.metrics import LabelledCollector, MetricSource
from eventstore.protocol.request_declaration import Request
from eventstore.server.net.budgets import Backlog
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

Route: TypeAlias = Callable[[ServerConnection, int, Any], None]
"""Takes a connection, the id of a request, and the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A part of a process that serves. Everything is optional."""

    routes: Mapping[type[Request], Route] = field(default_factory=dict)
    """Answers these requests."""
    metrics: Sequence[MetricSource[Any]] = ()
    """Figures for STATS, /health and /metrics."""
    collectors: Sequence[LabelledCollector] = ()
    """Figures with labels, for /metrics only."""
    attention: Callable[[], str | None] | None = None
    """Returns what an operator has to do; None: nothing. Safe on any thread."""
    run: Callable[[], Awaitable[None]] | None = None
    """Runs until cancelled, while the process serves."""
    stop: Callable[[], None] | None = None
    """Refuses what arrives from now on."""
    drain: Callable[[float], Awaitable[object]] | None = None
    """Waits, after `stop`, until what was accepted is answered. Takes the seconds that this may last."""


def routes_of_all(features: Iterable[Feature]) -> dict[type[Request], Route]:
    """Returns the routes of all features. No request may have two."""
    found: dict[type[Request], Route] = {}
    for feature in features:
        twice = found.keys() & feature.routes.keys()
        assert not twice, f"two features answer {sorted(each.__name__ for each in twice)}"
        found |= feature.routes
    return found


def begin(
    features: Iterable[Feature],
    nursery: trio.Nursery,
    gate: Gate,
    handle: Callable[[ServerConnection, bytes], None],
    end_turn: Callable[[], None],
    backlog: Backlog,
) -> None:
    """Serves the clients of the gate (see `Gate.run`) and runs what the features run, until the nursery is cancelled."""
    nursery.start_soon(gate.run, handle, end_turn, backlog)
    nursery.start_soon(gate.run_timeouts)
    for feature in features:
        if feature.run is not None:
            nursery.start_soon(feature.run)


async def wind_down(features: Sequence[Feature], gate: Gate, timeout_s: float) -> None:
    """Refuses what is new, tells clients so, and waits until what was accepted is answered, for this many seconds at most."""
    for feature in features:
        if feature.stop is not None:
            feature.stop()
    gate.say_goodbye()
    with trio.move_on_after(timeout_s):
        for feature in features:
            if feature.drain is not None:
                await feature.drain(timeout_s)
        await gate.wait_until_settled()
