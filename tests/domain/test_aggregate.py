"""Aggregates: applying events, and that a handler that raises leaves them unchanged."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eventstore as es
import eventstore.domain as d
from eventstore.domain.aggregate import check_initial_state, new
from eventstore.domain.restore import restore
from tests.domain.encoding.shapes import Everything, everything, loose
from tests.domain.things import Added, Broken, Careful, Do, Foreign, Listed, Nested, Point, Shelf, Thing, decoded, run


def apply_and_raise(command: Do, thing: Thing) -> None:
    thing.apply(Added(1))
    raise ValueError


@pytest.mark.parametrize(("cls", "touched"), [(Thing, False), (Shelf, True), (Careful, True)])
def test_events_before_an_error_are_dropped_and_attributes_that_cannot_change_are_put_back(cls: Any, touched: bool) -> None:
    thing = new(cls, "t-1")
    assert run(apply_and_raise, thing).touched is touched
    assert thing.version == 0
    assert thing.cents == (1 if touched else 0)
    assert run(lambda command, thing: None, thing).events == b""


@pytest.mark.parametrize(
    ("cls", "spoil", "touched"),
    [
        (Thing, lambda thing: None, False),
        (Thing, lambda thing: setattr(thing, "cents", 0), False),  # put back
        (Thing, lambda thing: vars(thing).update(more=[]), False),
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

    thing = new(cls, "t-1")
    assert run(fail, thing).touched is touched
    assert touched or vars(thing) == vars(new(cls, "t-1"))


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
    assert not handled.touched


def test_apply_inside_an_applies_method_is_refused() -> None:
    handled = run(lambda command, thing: thing.apply(Nested()), new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert "apply was called inside an @applies method" in handled.error.message


def test_apply_refuses_a_class() -> None:
    with pytest.raises(TypeError, match=r"apply takes an event, but got the class .*Added; pass an instance of it"):
        new(Thing, "t-1").apply(Added)


class Collection(d.Aggregate):
    """Keeps the events themselves, so its state says how they arrived."""

    def __init__(self) -> None:
        self.events: list[Everything] = []

    @d.applies(Everything)
    def _(self, event: Everything) -> None:
        self.events.append(event)


def restored(aggregate: d.Aggregate, events: list[es.NewEvent]) -> d.Aggregate:
    stored = [
        tuple.__new__(es.Event, (aggregate.id, version, new.type, new.data, new.metadata, "c-1", 0, version, new[0]))
        for version, new in enumerate(events, start=1)
    ]
    return restore(type(aggregate), aggregate.id, stored)


@given(st.lists(everything | loose, max_size=2), st.booleans())
def test_a_live_aggregate_is_the_one_that_is_restored(events: list[Everything], with_metadata: bool) -> None:
    def apply_all(command: Do, collection: Collection) -> None:
        for event in events:
            collection.apply(event, metadata={"user": "ada"} if with_metadata else None)
            event.numbers.append(7)  # the event has been applied as it was
            event.names["later"] = 7

    live = new(Collection, "c-1")
    handled = run(apply_all, live)
    assert handled.error is None
    assert repr(vars(live)) == repr(vars(restored(live, decoded(handled))))


@dataclass(frozen=True)
class Booked:
    at: datetime
    price: float


class Room(d.Aggregate):
    at: datetime
    price: float = 0.0

    @d.applies(Booked)
    def _(self, event: Booked) -> None:
        self.at, self.price = event.at, event.price


def test_what_is_decided_next_does_not_depend_on_whether_the_aggregate_was_restored() -> None:
    def book(command: Do, room: Room) -> None:
        room.apply(Booked(datetime(2026, 3, 28, 20, tzinfo=ZoneInfo("Europe/Berlin")), 5))

    live = new(Room, "r-1")
    again = restored(live, decoded(run(book, live)))
    assert isinstance(again, Room)
    for room in (live, again):  # the clocks go forward in that night, which an offset does not know
        assert (room.at + timedelta(days=1)).isoformat() == "2026-03-29T20:00:00+01:00"
        assert room.at.tzinfo == timezone(timedelta(hours=1))
        assert f"{room.price}" == "5.0"


class Dated(d.Aggregate):
    """Keeps at which version each event was applied."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    @d.applies(Added)
    def _(self, event: Added) -> None:
        self.versions.append(self.version)


def test_the_version_under_applies_is_that_before_the_event_live_and_restored() -> None:
    def add_twice(command: Do, dated: Dated) -> None:
        dated.apply(Added(1))
        dated.apply(Added(2))

    live = new(Dated, "d-1")
    again = restored(live, decoded(run(add_twice, live)))
    assert isinstance(again, Dated)
    assert live.versions == again.versions == [0, 1]


@dataclass(frozen=True)
class Doubled:
    cents: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cents", self.cents * 2)


class Purse(d.Aggregate):
    cents = 0

    @d.applies(Doubled)
    def _(self, event: Doubled) -> None:
        self.cents += event.cents


@pytest.mark.parametrize("metadata", [None, {"user": "ada"}])
def test_an_event_that_would_be_read_back_as_another_is_refused_and_nothing_changed(metadata: Any) -> None:
    purse = new(Purse, "p-1")
    handled = run(lambda command, purse: purse.apply(Doubled(3), metadata=metadata), purse)
    assert isinstance(handled.error, es.PayloadInvalid)
    assert handled.error.fields["field"] == "cents"
    assert "is read back as another: field cents is written as 6, and after reading as 12" in handled.error.message
    assert not handled.touched
    assert (purse.cents, purse.version) == (0, 0)


def test_a_field_of_an_aggregate_that_is_not_a_dataclass_is_refused() -> None:
    """Each instance would have the declaration of the field for its value."""

    class Cart(d.Aggregate):
        items: list[str] = field(default_factory=list)

    with pytest.raises(es.DomainRefused, match=r"Cart is not a dataclass, so the field\(\) 'items' .* in __init__") as caught:
        check_initial_state(Cart)
    assert caught.value.fields["field"] == "items"
    check_initial_state(dataclass(eq=False)(Cart))


@pytest.mark.parametrize(
    "members", [{"_aggregate_id": "x"}, {"_aggregate_total": 0}, {"__annotations__": {"_aggregate_total": int}}]
)
def test_a_name_that_begins_as_those_of_every_aggregate_is_refused(members: dict[str, object]) -> None:
    with pytest.raises(es.DomainRefused, match=r"Cart defines '_aggregate_.*', but names that begin with _aggregate_ are"):
        type(d.Aggregate)("Cart", (d.Aggregate,), members)


def test_such_a_name_that_init_sets_is_refused() -> None:
    class Cart(d.Aggregate):
        def __init__(self) -> None:
            self._aggregate_version = 3

    class Basket(d.Aggregate):
        def __init__(self) -> None:
            self._aggregate_total = 0

    for each, name in ((Cart, "version"), (Basket, "total")):
        with pytest.raises(es.DomainRefused, match=f"defines '_aggregate_{name}', but names that begin with _aggregate_ are"):
            check_initial_state(each)


@dataclass
class Changing:
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Holding:
    names: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    "value",
    [[], {}, set(), bytearray(), deque(), defaultdict(list), Counter(), ([],), Changing(), Holding(), (1, Holding())],
    ids=lambda value: type(value).__name__,
)
def test_a_class_attribute_that_all_aggregates_would_share_is_refused(value: object) -> None:
    for declare in (
        lambda: type(d.Aggregate)("Cart", (d.Aggregate,), {"items": value}),
        lambda: type(d.Aggregate)("Cart", (type("Mixin", (), {"items": value}), d.Aggregate), {}),
        lambda: type(d.Aggregate)("Cart", (d.Aggregate,), {"items": value, "__annotations__": {"items": "list[ClassVar]"}}),
    ):
        with pytest.raises(
            es.DomainRefused,
            match=r"would share the .* 'items'; set it in __init__, as in self.items =.*MappingProxyType",
        ) as caught:
            declare()
        assert caught.value.fields["field"] == "items"


def test_class_attributes_that_do_not_change_are_accepted() -> None:
    class Base(d.Aggregate):
        rates: ClassVar[dict[str, int]] = {"std": 19}

    class Cart(Base):
        name: str | None = None
        items: tuple[str, ...] = ()
        point = Point(1)
        rates = {"std": 20}  # noqa: RUF012 # declared by the base as one of the class
        prices = MappingProxyType({"tea": 5})
        kinds = frozenset({"tea"})

        @property
        def first(self) -> str:
            return self.items[0]

        def __init__(self) -> None:
            self.counts: dict[str, list[int]] = {"tea": []}
            self.holding = Holding()

    check_initial_state(Cart)


SHARED: list[str] = []


@pytest.mark.parametrize(
    "value", [SHARED, (1, SHARED), {"names": SHARED}, [SHARED], Holding(SHARED), Holding([]), Changing()],
    ids=["list", "in a tuple", "in a dict", "in a list", "in a dataclass", "a dataclass", "that can change"],
)  # fmt: skip
def test_an_init_that_sets_what_all_aggregates_share_is_refused(value: object) -> None:
    class Cart(d.Aggregate):
        def __init__(self) -> None:
            self.items = value

    why = r"all its instances share what 'items' contains, .*; create it in __init__; if it never changes, make it a tuple, "
    with pytest.raises(es.DomainRefused, match=why + "frozenset, types.MappingProxyType or frozen dataclass"):
        check_initial_state(Cart)

    class OneEach(d.Aggregate):
        def __init__(self) -> None:
            self.items = deepcopy(value)

    check_initial_state(OneEach)


def test_what_an_init_sets_and_cannot_change_may_be_shared() -> None:
    prices, point = MappingProxyType({"tea": 5}), Point(1)

    class Cart(d.Aggregate):
        def __init__(self) -> None:
            self.items = [prices, ("tea",), frozenset({"tea"}), point]

    check_initial_state(Cart)


@dataclass
class Link:
    next: object = None


def ring(*more: object) -> list[object]:
    items: list[object] = [*more]
    items.append({"rings": (items, Link(items))})
    return items


def chain(end: object) -> object:
    for _ in range(100_000):
        end = Link(end)
    return end


def test_an_initial_state_that_contains_itself_or_nests_deeply_is_accepted_and_searched_for_what_is_shared() -> None:
    class Cart(d.Aggregate):
        def __init__(self) -> None:
            self.items, self.links = ring(), chain(None)

    check_initial_state(Cart)

    for made in (ring, chain):

        class Sharing(d.Aggregate):
            def __init__(self, made: Callable[[object], object] = made) -> None:
                self.items = made(SHARED)

        with pytest.raises(es.DomainRefused, match=r"all its instances share what 'items' contains"):
            check_initial_state(Sharing)


@pytest.mark.parametrize("touched", [False, True])
def test_a_rejection_by_an_aggregate_whose_state_contains_itself_or_nests_deeply_says_whether_it_changed(touched: bool) -> None:
    values: Any = [] if touched else ()
    itself = Point(1, values)
    object.__setattr__(itself, "y", (itself, values))
    for _ in range(100_000):
        values = (values,)

    for value in (itself, values):
        thing = new(Thing, "t-1")
        vars(thing)["held"] = value
        handled = run(lambda command, thing: d.reject("no"), thing)
        assert isinstance(handled.error, d.Rejected)
        assert handled.touched is touched


def test_an_init_that_raises_is_refused() -> None:
    class Cart(d.Aggregate):
        def __init__(self) -> None:
            raise ValueError("no items")

    with pytest.raises(es.DomainRefused, match="its __init__ raised ValueError: no items"):
        check_initial_state(Cart)


def test_an_attribute_that_is_set_after_the_class_was_declared_is_found_by_the_check() -> None:
    class Cart(d.Aggregate):
        items: Any = ()

    Cart.items = []
    with pytest.raises(es.DomainRefused, match="would share the list 'items'"):
        check_initial_state(Cart)


def test_an_event_that_init_applies_is_refused_where_the_class_is_checked_and_when_it_is_created() -> None:
    class Eager(d.Aggregate):
        def __init__(self) -> None:
            self.total = 0
            self.apply(Added(1))

        @d.applies(Added)
        def _(self, event: Added) -> None:
            self.total += event.cents

    with pytest.raises(es.DomainRefused, match=r"its __init__ raised RuntimeError: .* or in __init__; an aggregate"):
        check_initial_state(Eager)
    with pytest.raises(RuntimeError, match="only a handler applies them"):
        d.restore(Eager, "a", events=[])
