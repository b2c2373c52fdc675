"""A projection whose key is in the payload of an event that has a second version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import eventstore.domain as d
from eventstore.domain.projections.projection import Row
from eventstore.model import Event

NAME = "spark-filed"


@d.upcast(NAME, version=1)
def _renamed(old: dict[str, object]) -> dict[str, object]:
    return {"drawer": old["place"]}


@d.event(NAME, version=2)
@dataclass(frozen=True)
class Filed:
    drawer: str


class ByDrawer(d.Projection[int]):
    name = "by_drawer"
    columns: ClassVar = {"events": int}

    def key(self, event: Event) -> str:
        return str(event.json()["drawer"])

    def initial(self) -> int:
        return 0

    @d.folds(Filed)
    def _(self, state: int, event: Filed) -> int:
        return state + 1

    def row(self, key: str, state: int) -> Row:
        return {"events": state}
