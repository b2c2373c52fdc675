"""Aggregates, events and a command that tests of handlers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.encoding.command_type import command_type
from eventstore.domain.handler import Handled, Handler


@dataclass(frozen=True)
class Do:
    thing: str
    what: str = ""


@dataclass(frozen=True)
class Added:
    cents: int


@dataclass(frozen=True)
class Listed:
    name: str


@dataclass(frozen=True)
class Broken:
    pass


@dataclass(frozen=True)
class Nested:
    pass


@dataclass(frozen=True)
class Foreign:
    pass


@dataclass(frozen=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


class Thing(d.Aggregate):
    cents = 0
    point = Point(1)

    @d.applies(Added)
    def _(self, event: Added) -> None:
        self.cents += event.cents

    @d.applies(Broken)
    def _(self, event: Broken) -> None:
        self.cents = -1
        raise ValueError("a bug under @applies")

    @d.applies(Nested)
    def _(self, event: Nested) -> None:
        self.apply(Added(1))


class Shelf(Thing):
    def __init__(self) -> None:
        self.names: list[str] = []

    @d.applies(Listed)
    def _(self, event: Listed) -> None:
        self.names.append(event.name)


class Careful(Shelf):
    changes_only_by_events = True


class Insufficient(d.Rejected):
    pass


def run(function: Any, aggregate: d.Aggregate) -> Handled:
    return Handler(command_type(Do), type(aggregate), function).run(Do("t-1"), aggregate)


def decoded(handled: Handled) -> list[es.NewEvent]:
    values = flat.decode_trusted(handled.events, 4 * handled.event_count)
    return [tuple.__new__(es.NewEvent, values[at : at + 4]) for at in range(0, len(values), 4)]
