"""A domain of aggregates with many events: lists, clocks, whose state does not follow from their events, and leaks, of which a
handler changes the state without an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import eventstore.domain as d


@dataclass(frozen=True)
class AddLines:
    """Rejected after the last line if there would be more than `most`."""

    list: str
    lines: int
    most: int = 1_000_000


@dataclass(frozen=True)
class Tick:
    clock: str
    times: int


@dataclass(frozen=True)
class Drip:
    leak: str
    times: int
    without_event: int = 0


@dataclass(frozen=True)
class LineAdded:
    number: int


@dataclass(frozen=True)
class Ticked:
    pass


@dataclass(frozen=True)
class Dripped:
    number: int


class Lines(d.Aggregate):
    def __init__(self) -> None:
        self.lines: list[int] = []

    @d.applies(LineAdded)
    def _(self, event: LineAdded) -> None:
        self.lines.append(event.number)


ticks = count()


class Clock(d.Aggregate):
    at = 0

    @d.applies(Ticked)
    def _(self, event: Ticked) -> None:
        self.at = next(ticks)


class Leak(d.Aggregate):
    drops = 0

    @d.applies(Dripped)
    def _(self, event: Dripped) -> None:
        self.drops += 1


app = d.Domain()


@app.handles(AddLines)
def add_lines(command: AddLines, lines: Lines) -> None:
    for _ in range(command.lines):
        lines.apply(LineAdded(len(lines.lines)))
    if len(lines.lines) > command.most:
        d.reject("too many lines", code="many")


@app.handles(Tick)
def tick(command: Tick, clock: Clock) -> None:
    for _ in range(command.times):
        clock.apply(Ticked())


@app.handles(Drip)
def drip(command: Drip, leak: Leak) -> None:
    for _ in range(command.times):
        leak.apply(Dripped(leak.drops))
    leak.drops += command.without_event
