"""A domain that publishes what is about one course to a topic of its own, and everything to another."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore as es
import eventstore.domain as d

app = d.Domain()


@d.event(tags=("course", "student"))
@dataclass(frozen=True)
class Subscribed:
    course: str
    student: str


@app.publishes("course-c1", Subscribed)
def of_one_course(event: Subscribed, stored: es.Event) -> object:
    return {"student": event.student} if "course:c1" in stored.tags else None


@app.publishes("subscriptions", Subscribed)
def of_all(event: Subscribed, stored: es.Event) -> object:
    return {"course": event.course}


app.publishes_as_stored("stored", Subscribed)
app.publishes_as_cloudevents("cloudevents", Subscribed)
