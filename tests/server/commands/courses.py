"""A domain whose events have tags: students subscribe to courses."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d


@dataclass(frozen=True)
class Subscribe:
    subscription: str
    course: str
    students: list[str]


@d.event("Subscribed", tags=("course", "students"))
@dataclass(frozen=True)
class Subscribed:
    course: str
    students: list[str]


@d.event("Noted", version=1)
@dataclass(frozen=True)
class Noted:
    text: str


class Subscription(d.Aggregate):
    def __init__(self) -> None:
        self.students = 0

    @d.applies(Subscribed)
    def _(self, event: Subscribed) -> None:
        self.students += len(event.students)

    @d.applies(Noted)
    def _(self, event: Noted) -> None:
        """Only that it was."""


app = d.Domain()


@app.handles(Subscribe)
def subscribe(command: Subscribe, subscription: Subscription) -> None:
    subscription.apply(Subscribed(command.course, command.students))
    for student in command.students[1:]:
        subscription.apply(Noted(student))
