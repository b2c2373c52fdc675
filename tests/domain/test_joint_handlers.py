"""Handlers of commands about several aggregates: their declaration, and the kit that tests them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import eventstore.domain as d
from eventstore.domain.handler import JointHandler
from eventstore.domain.testing import given, given_each
from eventstore.errors import DomainRefused, HandlerFailed, InvalidArgument
from tests.server.commands.accounts import Account, Changed, Misuse, Move, MoveSlowly, MoveWithin, Open, app


@dataclass(frozen=True)
class Pair:
    left: str
    right: str
    number: int = 0


class Other(d.Aggregate):
    ignores_unknown = True
    seen: list[int]

    def __init__(self) -> None:
        self.seen = []

    @d.applies(Changed)
    def _(self, event: Changed) -> None:
        self.seen.append(event.cents)


def both(command: Pair, left: Account, right: Other) -> None:
    left.apply(Changed(1))
    right.apply(Changed(command.number))


def test_a_handler_takes_the_aggregates_that_the_fields_name() -> None:
    domain = d.Domain()
    domain.handles(Pair, aggregates=("left", "right"))(both)
    raw = d.encode_command(Pair("a", "b", 3))
    handler, command = domain.decode(raw.type, raw.payload, raw.aggregate_id)
    assert isinstance(handler, JointHandler)
    assert (raw.aggregate_id, handler.aggregates, handler.fields) == ("a", (Account, Other), ("left", "right"))
    assert handler.aggregate_ids(command) == ("a", "b")
    domain.check()
    assert list(domain.event_types) == ["Changed"]
    left, right = d.restore(Account, "a", []), d.restore(Other, "b", [])
    handled = handler.run_jointly(command, [left, right])
    assert [(part.event_count, part.error, part.touched) for part in handled.parts] == [(1, None, False)] * 2
    assert (left.version, right.seen) == (1, [3])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregates": ("left",)}, "name 2 to 1000 different fields of the command"),
        ({"aggregates": ()}, "name 2 to 1000 different fields"),
        ({"aggregates": "left"}, "name 2 to 1000 different fields"),
        ({"aggregates": ("left", "left")}, "name 2 to 1000 different fields"),
        ({"aggregates": ("left", "middle")}, "it has left, right, number"),
        ({"aggregates": ("left", "right"), "id": "right"}, "the first one is its id"),
        ({"aggregates": ("left", "right", "number")}, "takes 3 parameters; it must take 4: the command and 3 aggregates"),
    ],
)
def test_fields_that_cannot_be_are_refused(options: Any, words: str) -> None:
    with pytest.raises(DomainRefused, match=words):
        d.Domain().handles(Pair, **options)(both)


def test_classes_of_parameters_and_fields_are_checked() -> None:
    def plain(command: Pair, left: Account, right: str) -> None: ...

    with pytest.raises(DomainRefused, match="parameter right is annotated with"):
        d.Domain().handles(Pair, aggregates=("left", "right"))(plain)

    def numbered(command: Pair, left: Account, number: Other) -> None: ...

    domain = d.Domain()
    domain.handles(Pair, aggregates=("left", "number"))(numbered)
    with pytest.raises(DomainRefused, match="field 'number' is the aggregate's id, but is declared as"):
        domain.check()


@pytest.mark.parametrize(
    ("command", "words"), [(Move("a", "a", 1), "names aggregate 'a' in several"), (Move("a", "", 1), "target")]
)
def test_ids_that_cannot_be_are_refused_when_a_command_is_decoded(command: object, words: str) -> None:
    raw = d.encode_command(command)
    with pytest.raises(InvalidArgument, match=words):
        app.decode(raw.type, raw.payload, raw.aggregate_id)


def test_a_handler_that_fails_leaves_what_it_has_not_touched() -> None:
    domain = d.Domain()

    @domain.handles(Pair, aggregates=("left", "right"))
    def fail(command: Pair, left: Account, right: Other) -> None:
        left.apply(Changed(1))
        raise ValueError("late")

    handler = domain.handler("Pair")
    assert isinstance(handler, JointHandler)
    left, right = d.restore(Account, "a", []), d.restore(Other, "b", [])
    handled = handler.run_jointly(Pair("a", "b"), [left, right])
    assert isinstance(handled.error, HandlerFailed)
    assert [part.touched for part in handled.parts] == [False, True], "an int is put back, a list may have changed"
    assert (left.version, left.cents, right.version) == (0, 0, 0)


@pytest.mark.parametrize("kind", [Move, MoveSlowly])
def test_the_kit_tells_the_events_of_each_aggregate(kind: Any) -> None:
    scenario = given_each({"a": [Changed(100)]}).when(kind("a", "b", 30)).then_each({"a": [Changed(-30)], "b": [Changed(30)]})
    scenario.when(Open("b", 5)).then_each({"b": [Changed(5)]})
    scenario.when(Move("b", "c", 35)).then_each({"b": [Changed(-35)], "c": [Changed(35)]})
    assert {name: vars(aggregate) for name, aggregate in scenario.aggregates.items()} == {
        "a": {"cents": 70},
        "b": {"cents": 0},
        "c": {"cents": 35},
    }
    scenario.when(Move("b", "c", 0)).then_nothing()
    scenario.when(Move("b", "c", 1)).then_rejected("not_covered")


def test_the_kit_tells_of_failures() -> None:
    given_each({"a": [Changed(9)], "l": [Changed(1_000)]}).when(MoveWithin("a", "b", 1, "l")).then_rejected("limit")
    error = given_each({}).when(Misuse("a", "b", "second")).then_failed(InvalidArgument)
    assert "none to 'a', the first aggregate" in error.message
    assert given_each({}).when(Misuse("a", "b", "fail")).then_failed(HandlerFailed)
    assert given_each({}).when(Move("a", "a", 1)).then_failed(InvalidArgument)


def test_the_kit_fails_when_it_should_and_says_why() -> None:
    moved = given_each({"a": [Changed(9)]}).when(Move("a", "b", 1))
    with pytest.raises(AssertionError, match="the events of 'b' differ"):
        moved.then_each({"a": [Changed(-1)]})
    with pytest.raises(AssertionError, match="the events of 'c' differ"):
        moved.then_each({"a": [Changed(-1)], "b": [Changed(1)], "c": [Changed(1)]})
    with pytest.raises(AssertionError, match="the command was accepted"):
        moved.then_rejected()
    with pytest.raises(AssertionError, match="is about several aggregates; give the events of each with given_each"):
        given(Changed(9)).when(Move("a", "b", 1))
    with pytest.raises(AssertionError, match="the command failed with Rejected"):
        given_each({}).when(Move("a", "b", 1)).then_each({"a": [Changed(-1)]})
