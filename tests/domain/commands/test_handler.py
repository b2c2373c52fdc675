"""Handlers: their events, their errors, and what they may not do."""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore.domain.aggregate import new
from eventstore.domain.encoding.command_type import command_type
from eventstore.domain.handler import Handler
from eventstore.model import COMMIT_EVENTS_MAX
from tests.domain.things import Added, Do, Insufficient, Thing, decoded, run


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


def test_a_rejection_has_its_reason() -> None:
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


def test_fields_of_types_that_the_protocol_lacks_become_text() -> None:
    def refuse(command: Do, thing: Thing) -> None:
        d.reject("no", ids=[1, 2], share=0.5, many=3, none=None)  # type: ignore[arg-type] # on purpose

    error = run(refuse, new(Thing, "t-1")).error
    assert error is not None
    assert error.fields == {"reason": "rejected", "ids": "[1, 2]", "share": "0.5", "many": 3, "none": None}


def test_a_rejection_without_its_fields_is_a_bug() -> None:
    class Odd(d.Rejected):
        def __init__(self) -> None: ...

    def refuse(command: Do, thing: Thing) -> None:
        raise Odd

    error = run(refuse, new(Thing, "t-1")).error
    assert isinstance(error, es.HandlerFailed)
    assert error.fields["error"] == "Odd"


def test_any_other_exception_is_reported_by_name_with_bounded_text() -> None:
    def fail(command: Do, thing: Thing) -> None:
        raise KeyError("x" * 10_000)

    handled = run(fail, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert handled.error.fields["error"] == "KeyError"
    assert handled.error.fields["handler"] == f"{__name__}.{fail.__qualname__}"
    assert len(handled.error.message) < 600
    assert not handled.touched


@pytest.mark.parametrize("kind", [KeyError, es.PayloadInvalid])
def test_the_traceback_of_a_handler_is_logged_but_not_for_every_command(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(command: Do, thing: Thing) -> None:
        if kind is KeyError:
            raise KeyError("k")
        thing.apply(Added("a lot"))  # type: ignore[arg-type] # on purpose

    handler = Handler(command_type(Do), Thing, fail)
    for _ in range(3):
        handler.run(Do("t-1"), new(Thing, "t-1"))
    (record,) = caplog.records
    assert record.getMessage() == f"handler {handler.name} raised (1 so far)"
    assert record.exc_info is not None
    assert record.exc_info[0] is kind


def test_a_rejection_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(command: Do, thing: Thing) -> None:
        d.reject("not today")

    assert isinstance(run(refuse, new(Thing, "t-1")).error, es.Rejected)
    assert not caplog.records


def test_an_exception_whose_text_raises_is_reported_too() -> None:
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


@pytest.mark.parametrize("function", [lambda command, thing: 7, lambda command, thing: (yield)])
def test_a_handler_that_returns_something_is_a_bug(function: Any) -> None:
    handled = run(function, new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert "a handler must return None" in handled.error.message


def test_too_many_events_of_one_command_are_refused() -> None:
    def apply_many(command: Do, thing: Thing) -> None:
        for _ in range(COMMIT_EVENTS_MAX + 1):
            thing.apply(Added(1))

    thing = new(Thing, "t-1")
    handled = run(apply_many, thing)
    assert isinstance(handled.error, es.InvalidArgument)
    assert handled.error.fields["limit"] == COMMIT_EVENTS_MAX
    assert (thing.cents, thing.version, handled.touched) == (0, 0, False)


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
