"""Handlers of commands that are decided on a query: their declaration, the query, and the kit that tests them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.candidates import CandidateClasses
from eventstore.domain.decisions import ChangedEvent, DecisionScope, LastChanges
from eventstore.domain.handler import DecisionHandler
from eventstore.domain.testing import given, given_each
from eventstore.errors import DomainRefused, HandlerFailed
from tests.server.commands.enrolments import Enrol, Enrolled, Enrolling, EnrolSlowly, Note, Noted, OfCourse, Offer, Offered, app

ID = "enrolment-{courses}-1"


@dataclass(frozen=True)
class Ask:
    id: str


class Counting(d.Decision):
    count = 0

    @d.applies(Offered, Enrolled)
    def _(self, event: Offered | Enrolled) -> None:
        self.count += 1


def test_the_types_of_a_query_are_those_that_the_decision_applies_where_it_names_none() -> None:
    domain = d.Domain()
    tagged, typed = es.Query(tags=["course:c1"]), es.Query(["Noted"], ["course:c1"])
    domain.decides(Ask, over=lambda command: tagged | typed | es.Query())(ask)
    handler = domain.handler("Ask")
    assert isinstance(handler, DecisionHandler)
    types = ["Offered", "Enrolled"]
    assert handler.query_of(Ask("a")) == es.Query(types, ["course:c1"]) | typed | es.Query(types)
    assert (handler.aggregates, handler.folds) == ((), (Counting,))
    domain.check()
    assert sorted(domain.event_types) == ["Enrolled", "Offered"]
    assert not CandidateClasses(domain).all, "no aggregate is restored as one"


def ask(command: Ask, decision: Counting) -> None: ...


@pytest.mark.parametrize("over", [es.Query(), None, lambda: es.Query()])
def test_what_is_no_function_of_a_command_is_refused_as_its_query(over: Any) -> None:
    with pytest.raises(DomainRefused, match=r"over is .*; it must be a sync function that takes the command"):
        d.Domain().decides(Ask, over=over)


def test_an_async_function_is_refused_as_the_query_of_a_command() -> None:
    async def over(command: Ask) -> es.Query:
        return es.Query()

    with pytest.raises(DomainRefused, match="it must be a sync function"):
        d.Domain().decides(Ask, over=cast(Any, over))


def test_classes_of_parameters_are_checked() -> None:
    def on_aggregate(command: Ask, decision: d.Aggregate) -> None: ...

    def on_nothing(command: Ask) -> None: ...

    with pytest.raises(DomainRefused, match="annotate it with a subclass of Decision"):
        d.Domain().decides(Ask, over=lambda command: es.Query())(on_aggregate)
    with pytest.raises(DomainRefused, match=r"takes 1 parameters; it must take two: command, decision$"):
        d.Domain().decides(Ask, over=lambda command: es.Query())(on_nothing)
    with pytest.raises(DomainRefused, match="annotate it with a subclass of Aggregate"):
        d.Domain().handles(Ask)(ask)
    domain = d.Domain()
    domain.decides(Ask, over=lambda command: es.Query())(ask)
    with pytest.raises(DomainRefused, match="already has a handler"):
        domain.decides(Ask, over=lambda command: es.Query())(ask)


@pytest.mark.parametrize("kind", [Enrol, EnrolSlowly])
def test_the_kit_gives_a_command_what_its_query_finds(kind: type[Enrol]) -> None:
    scenario = given(Offered("c1", 2), Offered("c2", 1), Enrolled("c2", "s1"))
    scenario.when(kind(ID, "c1", "s1")).then(Enrolled("c1", "s1"))
    scenario.when(kind("enrolment-{courses}-2", "c1", "s2")).then(Enrolled("c1", "s2"))
    assert isinstance(scenario.aggregate, Enrolling)
    assert scenario.aggregate.enrolled == [("c1", "s1"), ("c1", "s2")], "not that of another course and student"
    scenario.when(kind("enrolment-{courses}-3", "c1", "s3")).then_rejected("full")
    scenario.when(kind("enrolment-{courses}-3", "c2", "s1")).then_rejected("enrolled")
    scenario.when(Offer("course-{courses}-3", "c3", 0)).then_nothing()


def test_the_kit_says_what_fails() -> None:
    scenario = given(Offered("c1", 1))
    assert isinstance(scenario.when(Note(ID, "c1", "raise")).then_failed(), HandlerFailed)
    given(Offered("c1", 1)).when(Note(ID, "c1", "x")).then(Noted("x, 1 places"))
    with pytest.raises(AssertionError, match="the events differ"):
        given(Offered("c1", 1)).when(Enrol(ID, "c1", "s1")).then()
    with pytest.raises(AssertionError, match="is decided on a query; test it with given"):
        given_each({ID: []}, domain=app).when(Enrol(ID, "c1", "s1"))


def test_the_kit_finds_state_that_is_not_of_events() -> None:
    domain = d.Domain()

    @domain.decides(Offer, over=lambda command: es.Query(tags=[f"course:{command.course}"]))
    def change(command: Offer, decision: OfCourse) -> None:
        decision.apply(Offered(command.course, command.places))
        decision.taken = ("s1",)

    with pytest.raises(AssertionError, match="restored from its events the decision is"):
        given(domain=domain).when(Offer(ID, "c1", 1))


def test_what_is_kept_of_changes_is_bounded_over_all_scopes_and_what_is_not_kept_counts_as_changed() -> None:
    changes = LastChanges(8)
    scopes = [DecisionScope(f"{number}", 0, changes) for number in range(50)]
    query, other = es.Query(["Enrolled"], ["student:s7"]), es.Query(["Offered"], ["course:c1"])
    for number, scope in enumerate(scopes, 1):
        scope.note(number, [ChangedEvent("Enrolled", frozenset({"student:s7"}), b"")])
        assert scope.last_change(query) == number
        assert scope.last_change(other) == max(0, number - 4), "two names each"
    assert all(scope.last_change(query) >= number for number, scope in enumerate(scopes, 1))
    assert len(changes) == 8
