"""A domain of decisions over aggregates: courses with places, students with a number of courses."""

from __future__ import annotations

from dataclasses import dataclass

import trio

import eventstore as es
import eventstore.domain as d

app = d.Domain()
MOST = 3
"""Courses of a student."""


@d.event(tags=("course",))
@dataclass(frozen=True)
class Offered:
    course: str
    places: int


@d.event(tags=("course", "student"))
@dataclass(frozen=True)
class Enrolled:
    course: str
    student: str


@dataclass(frozen=True)
class Noted:
    """Passes no query."""

    text: str


@dataclass(frozen=True)
class Offer:
    id: str
    course: str
    places: int


@dataclass(frozen=True)
class Enrol:
    id: str
    course: str
    student: str


@dataclass(frozen=True)
class EnrolSlowly:
    id: str
    course: str
    student: str


@dataclass(frozen=True)
class Note:
    id: str
    course: str
    what: str


@dataclass(frozen=True)
class Rename:
    id: str
    title: str


class OfCourse(d.Decision):
    places: int | None = None
    taken: tuple[str, ...] = ()

    @d.applies(Offered)
    def _(self, event: Offered) -> None:
        self.places = event.places

    @d.applies(Enrolled)
    def _(self, event: Enrolled) -> None:
        self.taken += (event.student,)


class Enrolling(d.Decision):
    """Lists in the state, so that a refusal cannot be put back."""

    places: int | None

    def __init__(self) -> None:
        self.places = None
        self.enrolled: list[tuple[str, str]] = []

    @d.applies(Offered)
    def _(self, event: Offered) -> None:
        self.places = event.places

    @d.applies(Enrolled)
    def _(self, event: Enrolled) -> None:
        self.enrolled.append((event.course, event.student))


class Noting(d.Decision):
    places: int | None = None

    @d.applies(Offered)
    def _(self, event: Offered) -> None:
        self.places = event.places

    @d.applies(Noted)
    def _(self, event: Noted) -> None: ...


@dataclass(frozen=True)
class Renamed:
    title: str


class Title(d.Aggregate):
    """What a decision writes to may be an aggregate as well."""

    ignores_unknown = True
    title = ""
    events = 0

    @d.applies(Renamed)
    def _(self, event: Renamed) -> None:
        self.title = event.title

    @d.applies(Offered)
    def _(self, event: Offered) -> None:
        self.title = f"of {event.places}"


def of_both(command: Enrol | EnrolSlowly) -> es.Query:
    of_course = es.Query(["Offered", "Enrolled"], [f"course:{command.course}"])
    return of_course | es.Query(["Enrolled"], [f"student:{command.student}"])


@app.decides(Offer, over=lambda command: es.Query(tags=[f"course:{command.course}"]))
def offer(command: Offer, decision: OfCourse) -> None:
    if decision.places is not None:
        d.reject("offered", code="offered")
    if command.places < 0:
        raise ValueError("a bug")
    if command.places:
        decision.apply(Offered(command.course, command.places))


def _enrol(command: Enrol | EnrolSlowly, decision: Enrolling) -> None:
    of_course = [student for course, student in decision.enrolled if course == command.course]
    if decision.places is None:
        d.reject("no such course", code="unknown")
    if command.student in of_course:
        d.reject("enrolled", code="enrolled")
    if len(of_course) >= decision.places:
        d.reject("full", code="full")
    if sum(student == command.student for _, student in decision.enrolled) >= MOST:
        d.reject("busy", code="busy")
    decision.apply(Enrolled(command.course, command.student))


@app.decides(Enrol, over=of_both)
def enrol(command: Enrol, decision: Enrolling) -> None:
    _enrol(command, decision)


@app.decides(EnrolSlowly, over=of_both)
async def enrol_slowly(command: EnrolSlowly, decision: Enrolling) -> None:
    await trio.lowlevel.checkpoint()
    _enrol(command, decision)


def of_course(command: Note) -> es.Query:
    if command.what == "raise":
        raise ValueError("no query")
    if command.what == "nothing":
        return None  # type: ignore[return-value] # a bug of the domain's author
    if command.what == "large":
        return es.Query([f"{number}".zfill(255) for number in range(256)]) | es.Query(["x" * 255])
    return es.Query(["Offered"], [f"course:{command.course}"])


@app.decides(Note, over=of_course)
def note(command: Note, decision: Noting) -> None:
    if command.what == f"unless {decision.places}":
        d.reject(command.what)
    if command.what.startswith("offer "):
        decision.apply(Offered(command.course, int(command.what.removeprefix("offer "))))
    elif command.what == "version":
        decision.apply(Noted(f"version {decision.version}"))
    else:
        decision.apply(Noted(f"{command.what}, {decision.places} places"))


@app.handles(Rename)
def rename(command: Rename, title: Title) -> None:
    if title.title == command.title:
        d.reject("so it is", code="same")
    title.apply(Renamed(command.title))
