"""Marked methods: which declarations are accepted and which are refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.aggregate import new
from tests.domain.things import Added, Listed, Thing


def test_a_class_with_slots_or_two_methods_for_an_event_is_refused() -> None:
    with pytest.raises(es.DomainRefused, match="__slots__"):
        type(d.Aggregate)("Slotted", (d.Aggregate,), {"__slots__": ("cents",)})
    with pytest.raises(es.DomainRefused, match="two methods"):

        class Doubled(d.Aggregate):
            @d.applies(Added)
            def _(self, event: Added) -> None: ...

            @d.applies(Added)
            def _(self, event: Added) -> None: ...


@pytest.mark.parametrize("name", ["id", "version", "apply"])
def test_names_that_every_aggregate_has_are_refused(name: str) -> None:
    with pytest.raises(es.DomainRefused, match=f"defines '{name}', .*use another name"):
        type(d.Aggregate)("Versioned", (d.Aggregate,), {name: ""})
    mixin = type("Mixin", (), {name: ""})
    with pytest.raises(es.DomainRefused, match=f"defines '{name}'"):
        type(d.Aggregate)("Mixed", (mixin, d.Aggregate), {})


def test_any_callable_with_the_right_parameters_is_accepted() -> None:
    def watched(function: Any) -> Any:
        return lambda *arguments, **named: function(*arguments, **named)

    class Watching(d.Aggregate):
        cents = 0

        @functools.wraps(d.Aggregate.__init__)
        def __init__(self, clock: object = None) -> None:
            self.clock = clock

        @d.applies(Added)
        @watched
        def _(self, event: Added, log: object = None, *, again: bool = False) -> None:
            self.cents += event.cents

    thing = new(Watching, "t-1")
    thing.apply(Added(3))
    assert thing.cents == 3


def test_a_method_with_the_wrong_parameters_is_refused_when_it_is_declared() -> None:
    for decorate in (d.applies, d.folds):
        with pytest.raises(es.DomainRefused, match=r"added is a function; its decorator needs the event class as argument"):

            @decorate  # type: ignore[arg-type] # on purpose
            def added(self: Any, event: Added) -> None: ...

    with pytest.raises(
        es.DomainRefused, match=r"method .*added for .*Added takes the wrong parameters; it must take: self, event$"
    ):

        @d.applies(Added)  # type: ignore[arg-type]
        def _added(self: Any) -> None: ...

    with pytest.raises(es.DomainRefused, match="it must take: self, state, event or: self, state, event, stored"):

        @d.folds(Added)
        def _counted(self: Any, event: Added) -> None: ...


def test_a_subclass_may_replace_a_method_of_its_base() -> None:
    class Negative(Thing):
        @d.applies(Added)
        def added(self, event: Added) -> None:
            self.cents -= event.cents

    thing = new(Negative, "t-1")
    thing.apply(Added(1))
    assert thing.cents == -1


def test_one_method_may_be_for_several_events() -> None:
    class Counting(d.Aggregate):
        count = 0

        @d.applies(Added)
        @d.applies(Listed)
        def _(self, event: Added | Listed) -> None:
            self.count += 1

    thing = new(Counting, "t-1")
    thing.apply(Added(1))
    thing.apply(Listed("x"))
    assert (thing.count, thing.version) == (2, 2)
    assert "Counting 't-1' v2 count=2" in repr(thing)
