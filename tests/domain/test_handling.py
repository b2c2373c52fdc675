"""One command on one aggregate in memory: what comes of it, and that a handler that raises leaves no trace."""

from __future__ import annotations

import functools
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.aggregate import new
from eventstore.domain.command_type import command_type
from eventstore.domain.handling import Handled, Handler
from eventstore.model import COMMIT_EVENTS_MAX


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


def test_the_events_are_those_of_a_commit() -> None:
    thing = new(Thing, "t-1")

    def add_twice(command: Do, thing: Thing) -> None:
        thing.apply(Added(1))
        assert (thing.cents, thing.version) == (1, 1), "state and version change at once"
        thing.apply(Added(2))

    handled = run(add_twice, thing)
    assert decoded(handled) == [es.NewEvent("Added", {"cents": 1}), es.NewEvent("Added", {"cents": 2})]
    assert (handled.event_count, handled.error, handled.touched) == (2, None, False)
    assert (thing.id, thing.version, thing.cents) == ("t-1", 2, 3)
    assert decoded(run(lambda command, thing: thing.apply(Added(4)), thing)) == [es.NewEvent("Added", {"cents": 4})]
    assert thing.version == 3


def test_a_handler_without_events_changes_nothing() -> None:
    assert run(lambda command, thing: None, new(Thing, "t-1")) == (b"", 0, None, False)


def test_a_rejection_is_told_with_its_reason() -> None:
    def refuse(command: Do, thing: Thing) -> None:
        d.reject("not enough", code="insufficient", missing=3)

    thing = new(Thing, "t-1")
    handled = run(refuse, thing)
    assert isinstance(handled.error, d.Rejected)
    assert handled.error.message == "not enough"
    assert handled.error.fields == {"reason": "insufficient", "missing": 3}
    assert handled.error.code == es.Rejected.code
    assert handled[:2] == (b"", 0)
    assert not handled.touched


def test_the_reason_of_a_subclass_is_its_name() -> None:
    assert Insufficient("x").fields == {"reason": "Insufficient"}
    assert d.Rejected("x").fields == {"reason": "rejected"}
    with pytest.raises(d.Rejected) as caught:
        d.reject("x")
    assert caught.value.fields == {"reason": "rejected"}


def test_fields_that_the_wire_does_not_have_become_text() -> None:
    def refuse(command: Do, thing: Thing) -> None:
        d.reject("no", ids=[1, 2], share=0.5, many=3, none=None)  # type: ignore[arg-type] # on purpose

    error = run(refuse, new(Thing, "t-1")).error
    assert error is not None
    assert error.fields == {"reason": "rejected", "ids": "[1, 2]", "share": "0.5", "many": 3, "none": None}


def test_a_rejection_that_is_not_set_up_is_a_bug() -> None:
    class Odd(d.Rejected):
        def __init__(self) -> None: ...

    def refuse(command: Do, thing: Thing) -> None:
        raise Odd

    error = run(refuse, new(Thing, "t-1")).error
    assert isinstance(error, es.HandlerFailed)
    assert error.fields["error"] == "Odd"


def test_any_other_exception_is_told_by_name_and_bounded() -> None:
    def fail(command: Do, thing: Thing) -> None:
        raise KeyError("x" * 10_000)

    handled = run(fail, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert handled.error.fields["error"] == "KeyError"
    assert handled.error.fields["handler"] == f"{__name__}.{fail.__qualname__}"
    assert len(handled.error.message) < 600
    assert not handled.touched


@pytest.mark.parametrize("kind", [KeyError, es.PayloadInvalid])
def test_where_a_handler_raised_is_logged_and_not_for_every_command(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(command: Do, thing: Thing) -> None:
        if kind is KeyError:
            raise KeyError("k")
        thing.apply(Added("a lot"))  # type: ignore[arg-type] # on purpose

    handler = Handler(command_type(Do), Thing, fail)
    for _ in range(3):
        handler.run(Do("t-1"), new(Thing, "t-1"))
    (told,) = caplog.records
    assert told.getMessage() == f"handler {handler.name} raised (1 so far)"
    assert told.exc_info is not None
    assert told.exc_info[0] is kind


def test_a_rejection_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(command: Do, thing: Thing) -> None:
        d.reject("not today")

    assert isinstance(run(refuse, new(Thing, "t-1")).error, es.Rejected)
    assert not caplog.records


def test_an_exception_whose_text_raises_is_told_as_well() -> None:
    class Odd(Exception):
        def __str__(self) -> NoReturn:
            raise RuntimeError

    def fail(command: Do, thing: Thing) -> None:
        raise Odd

    handled = run(fail, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert handled.error.message.endswith("Odd: its text raised RuntimeError")


def test_an_error_does_not_keep_the_aggregate_alive() -> None:
    def refuse(command: Do, thing: Thing) -> None:
        d.reject("no")

    handled = run(refuse, new(Thing, "t-1"))
    assert handled.error is not None
    assert traceback.extract_tb(handled.error.__traceback__) == []


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
        (Thing, lambda thing: setattr(thing, "cents", 0), True),  # an attribute of the instance that was not there before
        (Thing, lambda thing: vars(thing).update(more=1), True),
        (Shelf, lambda thing: None, True),  # a list: nobody knows
        (Careful, lambda thing: None, False),  # the author's word
        (Careful, lambda thing: thing.apply(Listed("x")), True),
        (Careful, lambda thing: setattr(thing, "names", []), True),
    ],
)
def test_an_aggregate_counts_as_touched_unless_it_is_certain_that_it_is_not(cls: Any, spoil: Any, touched: bool) -> None:
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
def test_only_values_that_cannot_change_inside_are_certain(value: object, touched: bool) -> None:
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


def test_an_event_that_does_not_fit_its_class_is_refused_before_it_changes_anything() -> None:
    thing = new(Thing, "t-1")
    handled = run(lambda command, thing: thing.apply(Added("1")), thing)
    assert isinstance(handled.error, es.PayloadInvalid)
    assert not handled.touched
    assert thing.cents == 0


def test_a_method_under_applies_that_raises_ends_the_command_even_if_the_handler_goes_on() -> None:
    def go_on(command: Do, thing: Thing) -> None:
        with pytest.raises(ValueError):
            thing.apply(Broken())

    handled = run(go_on, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert handled.touched


def test_apply_under_applies_is_refused() -> None:
    handled = run(lambda command, thing: thing.apply(Nested()), new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert "apply was called under @applies" in handled.error.message


@pytest.mark.parametrize("function", [lambda command, thing: 7, lambda command, thing: (yield)])
def test_a_handler_that_returns_something_is_a_bug(function: Any) -> None:
    handled = run(function, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert "a handler returns nothing" in handled.error.message


def test_too_many_events_of_one_command_are_refused() -> None:
    def apply_many(command: Do, thing: Thing) -> None:
        for _ in range(COMMIT_EVENTS_MAX + 1):
            thing.apply(Added(1))

    handled = run(apply_many, new(Thing, "t-1"))
    assert isinstance(handled.error, es.InvalidArgument)
    assert handled.error.fields["limit"] == COMMIT_EVENTS_MAX
    assert handled.touched


async def test_an_async_handler_may_wait() -> None:
    async def add(command: Do, thing: Thing) -> None:
        await trio.lowlevel.checkpoint()
        thing.apply(Added(1))

    async def refuse(command: Do, thing: Thing) -> None:
        await trio.lowlevel.checkpoint()
        d.reject("no")

    thing = new(Thing, "t-1")
    handler = Handler(command_type(Do), Thing, add)
    assert handler.is_async
    assert decoded(await handler.run_async(Do("t-1"), thing)) == [es.NewEvent("Added", {"cents": 1})]
    handled = await Handler(command_type(Do), Thing, refuse).run_async(Do("t-1"), thing)
    assert isinstance(handled.error, d.Rejected)
    sync = Handler(command_type(Do), Thing, lambda command, thing: None)
    assert (await sync.run_async(Do("t-1"), thing)).error is None


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
def test_names_that_every_aggregate_has_are_taken(name: str) -> None:
    with pytest.raises(es.DomainRefused, match=f"defines '{name}', .*call it something else"):
        type(d.Aggregate)("Versioned", (d.Aggregate,), {name: ""})
    mixin = type("Mixin", (), {name: ""})
    with pytest.raises(es.DomainRefused, match=f"defines '{name}'"):
        type(d.Aggregate)("Mixed", (mixin, d.Aggregate), {})


def test_whatever_can_be_called_as_it_is_called_is_taken() -> None:
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


def test_a_method_that_could_not_be_called_is_refused_where_it_is_declared() -> None:
    for decorate in (d.applies, d.folds):
        with pytest.raises(es.DomainRefused, match=r"added is a function; its decorator needs the class in brackets"):

            @decorate  # type: ignore[arg-type] # on purpose
            def added(self: Any, event: Added) -> None: ...

    with pytest.raises(
        es.DomainRefused, match=r"method .*added for .*Added cannot be called with its arguments, which are: self, event$"
    ):

        @d.applies(Added)  # type: ignore[arg-type]
        def _added(self: Any) -> None: ...

    with pytest.raises(es.DomainRefused, match="its arguments, which are: self, state, event or: self, state, event, stored"):

        @d.folds(Added)
        def _counted(self: Any, event: Added) -> None: ...


def test_a_class_is_no_event() -> None:
    with pytest.raises(TypeError, match=r"apply takes an event, and was given the class .*Added; make one of it"):
        new(Thing, "t-1").apply(Added)


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
