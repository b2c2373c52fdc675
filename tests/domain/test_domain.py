"""Domains: registering and finding handlers and reactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import bank
import eventstore as es
import eventstore.domain as d
from bank import Account, Deposit, Opened


@dataclass(frozen=True)
class Paint:
    thing: str
    colour: str


@dataclass(frozen=True)
class Painted:
    colour: str


@d.command("Paint")
@dataclass(frozen=True)
class PaintAgain:
    thing: str


@d.event("Opened")
@dataclass(frozen=True)
class OtherOpened:
    pass


@dataclass(frozen=True)
class Unstorable:
    what: complex


@dataclass(frozen=True)
class Brush:
    account: str


class Thing(d.Aggregate):
    @d.applies(Painted)
    def _(self, event: Painted) -> None: ...


class Other(d.Aggregate):
    @d.applies(OtherOpened)
    def _(self, event: OtherOpened) -> None: ...


class Broken(d.Aggregate):
    @d.applies(Unstorable)
    def _(self, event: Unstorable) -> None: ...


def paint(command: Paint, thing: Thing) -> None:
    thing.apply(Painted(command.colour))


def test_a_command_is_decoded_and_finds_its_handler() -> None:
    handler, command = bank.app.decode("Deposit", b'{"account":"acc-1","cents":5}', "acc-1")
    assert command == Deposit("acc-1", 5)
    assert (handler.name, handler.aggregate, handler.is_async) == ("bank.deposit", Account, False)
    assert bank.app.handlers["Deposit"] is handler


def test_an_unknown_command_is_refused_by_its_name() -> None:
    with pytest.raises(es.UnknownCommand, match="type 'Steal'; there are handlers for: Deposit, Open") as caught:
        bank.app.decode("Steal", b"{}", "acc-1")
    assert caught.value.fields == {"type": "Steal"}


def test_a_command_has_one_handler() -> None:
    app = d.Domain()
    assert app.handles(Paint)(paint) is paint
    with pytest.raises(es.DomainRefused, match=r"'Paint' .* already has a handler, tests\.domain\.test_domain\.paint"):
        app.handles(Paint)(paint)
    with pytest.raises(es.DomainRefused, match="already has a handler"):

        @app.handles(PaintAgain)
        def _(command: PaintAgain, thing: Thing) -> None: ...


def test_two_domains_may_handle_the_same_command() -> None:
    for _ in range(2):
        d.Domain().handles(Paint)(paint)


def no_aggregate(command: Paint, thing: str) -> None: ...
def not_annotated(command: Paint, thing) -> None: ...  # type: ignore[no-untyped-def] # on purpose
def base_only(command: Paint, thing: d.Aggregate) -> None: ...
def other_command(command: Deposit, thing: Thing) -> None: ...
def three(command: Paint, thing: Thing, more: int) -> None: ...
def starred(command: Paint, *things: Thing) -> None: ...
def unresolved(command: Paint, thing: Absent) -> None: ...  # type: ignore[name-defined] # noqa: F821 # on purpose


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_aggregate, r"is annotated with <class 'str'>; annotate .*, as in thing: Thing"),
        (not_annotated, "parameter thing is not annotated; annotate it"), (base_only, "with a subclass of Aggregate"),
        (other_command, "parameter command is annotated with"), (three, "takes 3 parameters"), (starred, "2 parameters"),
        (unresolved, "cannot be resolved"),
    ],
)  # fmt: skip
def test_annotations_that_do_not_match_are_refused(function: Any, why: str) -> None:
    with pytest.raises(es.DomainRefused, match=why) as caught:
        d.Domain().handles(Paint)(function)
    assert function.__name__ in caught.value.message


def test_the_command_need_not_be_annotated() -> None:
    def handler(command, thing: Thing) -> None: ...  # type: ignore[no-untyped-def] # on purpose

    app = d.Domain()
    app.handles(Paint)(handler)
    assert app.handler("Paint").aggregate is Thing


def test_the_check_finds_two_classes_with_one_name() -> None:
    app = d.Domain()

    @app.handles(Paint)
    def _(command: Paint, thing: Other) -> None: ...

    app.check()

    @app.handles(Brush)
    def _(command: Brush, account: Account) -> None: ...

    with pytest.raises(es.DomainRefused, match="are both stored as 'Opened'"):
        app.check()


def test_the_check_finds_an_aggregate_that_needs_arguments() -> None:
    app = d.Domain()

    class Named(d.Aggregate):
        def __init__(self, name: str, colour: str = "red") -> None:
            self.name = name

    class Coloured(Named):
        def __init__(self, colour: str = "red") -> None:
            super().__init__("", colour)

    app.handles(Paint)(handler_for(Coloured))
    app.check()
    app.handles(Brush)(handler_for(Named))
    with pytest.raises(
        es.DomainRefused, match=r"aggregate .*Named cannot be created, .*takes arguments; start with default values"
    ):
        app.check()


def handler_for(aggregate: type[d.Aggregate]) -> Callable[[Any, Any], None]:
    def handler(command: Any, thing: Any) -> None: ...

    handler.__annotations__ = {"thing": aggregate}
    return handler


def test_the_check_finds_an_aggregate_that_shares_a_list_with_all_others() -> None:
    app, names = d.Domain(), ["tea"]

    class Cart(d.Aggregate):
        def __init__(self) -> None:
            self.names = names

    app.handles(Paint)(handler_for(Cart))
    with pytest.raises(es.DomainRefused, match=r"Cart: all its instances share what 'names' contains, \['tea'\]"):
        app.check()


def test_the_check_finds_a_class_that_cannot_be_stored() -> None:
    app = d.Domain()

    @app.handles(Paint)
    def _(command: Paint, thing: Broken) -> None: ...

    with pytest.raises(es.DomainRefused, match=r"field what of .*Unstorable"):
        app.check()


@pytest.mark.parametrize("as_command", [True, False])
def test_the_check_finds_a_class_whose_instances_are_read_back_as_others(as_command: bool) -> None:
    @dataclass(frozen=True)
    class Doubled:
        thing: str
        cents: int

        def __post_init__(self) -> None:
            object.__setattr__(self, "cents", self.cents * 2)

    class Purse(d.Aggregate):
        @d.applies(Doubled)
        def _(self, event: Doubled) -> None: ...

    app = d.Domain()
    app.handles(Doubled if as_command else Paint)(handler_for(Thing if as_command else Purse))
    with pytest.raises(es.DomainRefused, match=r"Doubled is read back as another: field cents is written as"):
        app.check()


def test_reactions_are_async_functions_with_unique_names() -> None:
    app = d.Domain()

    @app.reacts(Opened, name="greet")
    async def _(event: Opened, send: d.Send) -> None: ...

    assert list(app.reactions) == ["greet"]
    assert "greet" in repr(app.reactions["greet"])
    with pytest.raises(es.DomainRefused, match="a reaction 'greet' already exists"):

        @app.reacts(Painted, name="greet")
        async def _(event: Painted, send: d.Send) -> None: ...

    with pytest.raises(es.DomainRefused, match="must be an async function"):

        @app.reacts(Opened, name="blocking")  # type: ignore[arg-type] # on purpose
        def _(event: Opened, send: d.Send) -> None: ...

    with pytest.raises(es.DomainRefused, match="must be an async function"):

        @app.reacts(Opened, name="short")
        async def _(event: Opened) -> None: ...

    for name in ("a/b", "x" * 101):
        with pytest.raises(es.DomainRefused, match="identifier"):

            @app.reacts(Opened, name=name)
            async def _(event: Opened, send: d.Send) -> None: ...
