"""Aggregates: applying events, and that a handler that raises leaves them unchanged."""

from __future__ import annotations

from typing import Any

import pytest

import eventstore as es
from eventstore.domain.aggregate import new
from tests.domain.things import Added, Broken, Careful, Do, Foreign, Listed, Nested, Point, Shelf, Thing, run


def apply_and_raise(command: Do, thing: Thing) -> None:
    thing.apply(Added(1))
    raise ValueError


def test_events_before_an_error_are_dropped_and_the_aggregate_is_touched() -> None:
    thing = new(Thing, "t-1")
    assert run(apply_and_raise, thing).touched
    assert thing.version == 0
    assert run(lambda command, thing: None, thing).events == b""


@pytest.mark.parametrize(
    ("cls", "spoil", "touched"),
    [
        (Thing, lambda thing: None, False),
        (Thing, lambda thing: setattr(thing, "cents", 0), True),  # a new attribute of the instance
        (Thing, lambda thing: vars(thing).update(more=1), True),
        (Shelf, lambda thing: None, True),  # a list may have changed inside
        (Careful, lambda thing: None, False),  # the author's promise
        (Careful, lambda thing: thing.apply(Listed("x")), True),
        (Careful, lambda thing: setattr(thing, "names", []), True),
    ],
)
def test_an_aggregate_is_touched_unless_it_is_certain_that_it_is_not(cls: Any, spoil: Any, touched: bool) -> None:
    def fail(command: Do, thing: Any) -> None:
        spoil(thing)
        raise ValueError

    assert run(fail, new(cls, "t-1")).touched is touched


@pytest.mark.parametrize(
    ("value", "touched"),
    [
        (1, False), ("x", False), (None, False), ((1, "x", (2.0,)), False), (frozenset({1}), False), (Point(1, (2,)), False),
        ([], True), ({}, True), (set(), True), (([],), True), (Point([], ()), True), (bytearray(), True), (object(), True),  # type: ignore[arg-type] # on purpose
    ],
)  # fmt: skip
def test_only_immutable_values_are_certain_to_be_unmodified(value: object, touched: bool) -> None:
    thing = new(Thing, "t-1")
    vars(thing)["held"] = value

    def fail(command: Do, thing: Thing) -> None:
        raise ValueError

    assert run(fail, thing).touched is touched


def test_an_event_of_a_class_that_is_not_applied_is_refused_and_nothing_changed() -> None:
    thing = new(Thing, "t-1")
    handled = run(lambda command, thing: thing.apply(Foreign()), thing)
    assert isinstance(handled.error, es.UnknownEvent)
    assert handled.error.fields["type"] == "Foreign"
    assert "@applies(Foreign)" in handled.error.message
    assert not handled.touched


def test_an_event_that_does_not_match_its_class_is_refused_before_it_changes_anything() -> None:
    thing = new(Thing, "t-1")
    handled = run(lambda command, thing: thing.apply(Added("1")), thing)
    assert isinstance(handled.error, es.PayloadInvalid)
    assert not handled.touched
    assert thing.cents == 0


def test_an_applies_method_that_raises_fails_the_command_even_if_the_handler_continues() -> None:
    def go_on(command: Do, thing: Thing) -> None:
        with pytest.raises(ValueError):
            thing.apply(Broken())

    handled = run(go_on, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert handled.touched


def test_apply_inside_an_applies_method_is_refused() -> None:
    handled = run(lambda command, thing: thing.apply(Nested()), new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert "apply was called inside an @applies method" in handled.error.message


def test_apply_refuses_a_class() -> None:
    with pytest.raises(TypeError, match=r"apply takes an event, but got the class .*Added; pass an instance of it"):
        new(Thing, "t-1").apply(Added)
