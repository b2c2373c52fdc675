"""A domain in its newer version: see `test_work_outdated`."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d

app = d.Domain()


@dataclass(frozen=True)
class Move:
    person: str
    to: str


@d.event("PersonMoved", version=2)
@dataclass(frozen=True)
class PersonMoved:
    town: str


@d.upcast("PersonMoved", version=1)
def _(fields: d.Fields) -> d.Fields:
    return {"town": fields["address"]}


class Person(d.Aggregate):
    @d.applies(PersonMoved)
    def _(self, event: PersonMoved) -> None:
        """Nothing depends on it."""


@app.handles(Move)
def move(command: Move, person: Person) -> None:
    person.apply(PersonMoved(command.to))
