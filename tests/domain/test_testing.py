"""The test kit fails when it should, and explains why."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import ClassVar
from zoneinfo import ZoneInfo

import pytest

import bank
import eventstore as es
import eventstore.domain as d
from bank import Deposit, Deposited, Opened
from eventstore.domain.testing import decoded, given, old, sent_by, stored

BERLIN = ZoneInfo("Europe/Berlin")


@dataclass(frozen=True)
class Wait:
    thing: str


@dataclass(frozen=True)
class Leak:
    thing: str


@dataclass(frozen=True)
class Unhandled:
    thing: str


@dataclass(frozen=True)
class Share:
    thing: str


@dataclass(frozen=True)
class Waited:
    pass


@dataclass(frozen=True)
class Book:
    thing: str
    at: str
    price: int


@dataclass(frozen=True)
class Remind:
    thing: str


@dataclass(frozen=True)
class Booked:
    at: datetime
    price: float


@dataclass(frozen=True)
class Reminded:
    text: str


class Room(d.Aggregate):
    at: datetime
    price = 0.0

    @d.applies(Booked)
    def _(self, event: Booked) -> None:
        self.at, self.price = event.at, event.price

    @d.applies(Reminded)
    def _(self, event: Reminded) -> None: ...


class Thing(d.Aggregate):
    leaked = 0

    @d.applies(Waited)
    def _(self, event: Waited) -> None: ...


app = d.Domain()


@app.handles(Wait)
async def wait(command: Wait, thing: Thing) -> None:
    thing.apply(Waited())


@app.handles(Leak)
def leak(command: Leak, thing: Thing) -> None:
    thing.leaked += 1


@app.handles(Book)
def book(command: Book, room: Room) -> None:
    room.apply(Booked(datetime.fromisoformat(command.at).replace(tzinfo=BERLIN), command.price))


@app.handles(Remind)
def remind(command: Remind, room: Room) -> None:
    room.apply(Reminded(f"{(room.at + timedelta(days=1)).isoformat()} for {room.price}"))


@app.reacts(Booked)
async def confirm(event: Booked, send: d.Send) -> None:
    await send(Confirm("t-1", event.at.replace(tzinfo=BERLIN), [2]))


@dataclass(frozen=True)
class Confirm:
    thing: str
    at: datetime
    shares: list[float]


@pytest.mark.parametrize(
    ("at", "offset"),
    [
        ("2026-03-28T20:00", 1), ("2026-10-25T02:30", 2),  # that occurs twice
        ("2026-03-29T02:30", 1),  # that does not exist
    ],
)  # fmt: skip
def test_expected_events_may_have_any_form_that_is_read_back_the_same(at: str, offset: int) -> None:
    local = datetime.fromisoformat(at)
    given().when(Book("t-1", at, 5)).then(Booked(local.replace(tzinfo=BERLIN), 5))
    given().when(Book("t-1", at, 5)).then(Booked(local.replace(tzinfo=timezone(timedelta(hours=offset))), 5.0))


def test_a_command_decides_in_a_test_as_after_a_restart() -> None:
    booked = given().when(Book("t-1", "2026-03-28T20:00", 5))
    booked.when(Remind("t-1")).then(Reminded("2026-03-29T20:00:00+01:00 for 5.0"))
    given(Booked(datetime(2026, 3, 28, 20, tzinfo=BERLIN), 5)).when(Remind("t-1")).then(
        Reminded("2026-03-29T20:00:00+01:00 for 5.0")
    )


def test_an_expected_event_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(es.PayloadInvalid, match="field cents is True, expected a whole number"):
        given(Opened("Ada")).when(Deposit("acc-1", 1)).then(Deposited(True))


async def test_the_commands_of_a_reaction_are_those_that_their_handlers_get() -> None:
    (cause,) = stored(Booked(datetime(2026, 3, 28, 20, tzinfo=BERLIN), 5))
    ((command, command_id),) = await sent_by(app.reactions["confirm"], cause)
    assert repr(command) == repr(Confirm("t-1", datetime(2026, 3, 28, 20, tzinfo=timezone(timedelta(hours=1))), [2.0]))
    assert command_id == "confirm/aggregate-1/1/0"


def test_other_events_are_shown_as_a_difference() -> None:
    with pytest.raises(AssertionError) as caught:
        given(Opened("Ada")).when(Deposit("acc-1", 5)).then(Deposited(6))
    lines = str(caught.value).splitlines()
    assert "  - Deposited(cents=6)" in lines
    assert "  + Deposited(cents=5)" in lines


def test_no_event_is_shown_as_such() -> None:
    with pytest.raises(AssertionError, match="no event"):
        given(Opened("Ada")).when(Deposit("acc-1", 5)).then_nothing()


def test_an_unexpected_rejection_is_reported() -> None:
    with pytest.raises(AssertionError, match="failed with Rejected: there is no account acc-1"):
        given().when(Deposit("acc-1", 5)).then(Deposited(5))
    with pytest.raises(AssertionError, match="the command before failed: the command failed with Rejected"):
        given().when(Deposit("acc-1", 5)).when(Deposit("acc-1", 5))


def test_a_missing_rejection_is_reported() -> None:
    with pytest.raises(AssertionError, match="the command was accepted"):
        given(Opened("Ada")).when(Deposit("acc-1", 5)).then_rejected()


def test_another_reason_is_reported() -> None:
    with pytest.raises(AssertionError, match="expected a rejection with reason 'amount', but the reason was 'not_open'"):
        given().when(Deposit("acc-1", 5)).then_rejected("amount")
    given().when(Deposit("acc-1", 5)).then_rejected("no account")
    given().when(Deposit("acc-1", 5)).then_rejected(d.Rejected)


def test_a_command_that_does_not_match_its_class_fails_as_on_a_server() -> None:
    failed = given().when(Deposit("acc-1", "5")).then_failed(es.PayloadInvalid)  # type: ignore[arg-type] # on purpose
    assert failed.fields["field"] == "cents"
    with pytest.raises(es.PayloadInvalid, match="owner"):
        given(Opened(5)).when(Deposit("acc-1", 5))  # type: ignore[arg-type] # on purpose


def test_state_that_changes_without_an_event_is_found() -> None:
    with pytest.raises(AssertionError, match="change state only in @applies methods"):
        given().when(Leak("t-1"))


class Cart(d.Aggregate):
    names: ClassVar[list[str]] = []

    @d.applies(Waited)
    def _(self, event: Waited) -> None:
        self.names.append("tea")


class Basket(d.Aggregate):
    def __init__(self) -> None:
        self.names = Cart.names


@dataclass(frozen=True)
class Pair:
    one: object
    other: object = 0


class Kept(d.Aggregate):
    value: object = None

    @d.applies(Waited)
    def _(self, event: Waited) -> None:
        self.value = EQUAL[0]


AT = datetime(2026, 3, 28, 20, tzinfo=BERLIN)
EQUAL: list[object] = []
"""What the event sets, and what a handler sets in its place."""


@pytest.mark.parametrize(
    ("read", "given_instead"),
    [
        (5.0, 5), (1, True), (AT.replace(tzinfo=timezone(timedelta(hours=1))), AT), ([1.0], [1]), ((1, (1,)), (1, (True,))),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}), ({1: "x"}, {1.0: "x"}), ({1}, {True}), (Pair([1]), Pair([1.0])),
        ({"a": 1}, OrderedDict({"a": 1})),
    ],
)  # fmt: skip
def test_state_that_a_restored_aggregate_has_in_another_form_is_found(read: object, given_instead: object) -> None:
    assert read == given_instead
    kept = d.Domain()

    @kept.handles(Wait)
    def _(command: Wait, aggregate: Kept) -> None:
        aggregate.apply(Waited())
        aggregate.value = EQUAL[1]

    EQUAL[:] = [read, given_instead]
    with pytest.raises(AssertionError, match="change state only in @applies methods"):
        given(domain=kept).when(Wait("t-1"))
    EQUAL[:] = [read, deepcopy(read)]
    given(domain=kept).when(Wait("t-1")).then(Waited())


@dataclass
class Link:
    value: object
    next: object = None


def ring(value: object) -> Link:
    link = Link(value)
    link.next = [link, (link,)]
    return link


def test_state_that_contains_itself_is_compared_with_that_of_the_restored_aggregate() -> None:
    kept = d.Domain()

    @kept.handles(Wait)
    def _(command: Wait, aggregate: Kept) -> None:
        aggregate.apply(Waited())
        aggregate.value = EQUAL[1]

    for other in (Link(5.0), ring(6.0), ring(5)):
        EQUAL[:] = [ring(5.0), other]
        with pytest.raises(AssertionError, match="change state only in @applies methods"):
            given(domain=kept).when(Wait("t-1"))
    EQUAL[:] = [ring(5.0), ring(5.0)]
    given(domain=kept).when(Wait("t-1")).then(Waited())


def test_a_shared_value_that_a_command_changes_is_found() -> None:
    carts = d.Domain()

    @carts.handles(Wait)
    def _(command: Wait, cart: Cart) -> None:
        cart.apply(Waited())

    with pytest.raises(AssertionError, match=r"Cart.names, which all aggregates share, is \['tea'.*\], but was \[\]"):
        given(domain=carts).when(Wait("t-1"))


def test_an_aggregate_whose_init_shares_a_list_is_refused() -> None:
    baskets = d.Domain()

    @baskets.handles(Wait)
    def _(command: Wait, basket: Basket) -> None: ...

    with pytest.raises(es.DomainRefused, match="all its instances share what 'names' contains"):
        given(domain=baskets).when(Wait("t-1"))


def test_async_handlers_run_with_and_without_an_event_loop() -> None:
    given().when(Wait("t-1")).then(Waited())


async def test_async_handlers_run_within_an_event_loop() -> None:
    given().when(Wait("t-1")).then(Waited())


def test_a_command_without_a_handler_is_reported() -> None:
    with pytest.raises(AssertionError, match=r"no domain handles .*Unhandled"):
        given().when(Unhandled("t-1"))
    given(domain=app).when(Unhandled("t-1")).then_failed(es.UnknownCommand)


def test_a_command_that_several_domains_handle_needs_the_domain() -> None:
    others = [d.Domain(), d.Domain()]
    for other in others:

        @other.handles(Share)
        def share(command: Share, thing: Thing) -> None:
            thing.apply(Waited())

    with pytest.raises(AssertionError, match="2 domains handle"):
        given().when(Share("t-1"))
    given(domain=others[0]).when(Share("t-1")).then(Waited())


def test_a_scenario_is_about_one_aggregate() -> None:
    with pytest.raises(AssertionError, match="one aggregate"):
        given(Opened("Ada")).when(Deposit("acc-1", 5)).then(Deposited(5)).when(Deposit("acc-2", 5))


def test_the_aggregate_can_be_looked_at() -> None:
    account = given(Opened("Ada")).when(Deposit("acc-1", 5)).aggregate
    assert isinstance(account, bank.Account)
    assert account.balance == 5


@d.event("test_testing.Sold", version=3)
@dataclass(frozen=True)
class Sold:
    cents: int
    currency: str
    note: str = ""


@d.upcast("test_testing.Sold", version=1)
def _(fields: dict[str, object]) -> dict[str, object]:
    return {"cents": int(str(fields["euros"])) * 100}


@d.upcast("test_testing.Sold", version=2)
def _(fields: dict[str, object]) -> dict[str, object]:
    return {**fields, "currency": "EUR"}


@dataclass(frozen=True)
class Refund:
    sale: str


class Sale(d.Aggregate):
    def __init__(self) -> None:
        self.sold: list[Sold] = []

    @d.applies(Sold)
    def _(self, event: Sold) -> None:
        self.sold.append(event)


sales = d.Domain()


@sales.handles(Refund)
def refund(command: Refund, sale: Sale) -> None:
    sale.apply(Sold(-sum(each.cents for each in sale.sold), "EUR"))


def test_an_event_that_older_code_stored_is_decoded_as_today() -> None:
    assert decoded(Sold, old("test_testing.Sold", {"euros": 3})) == Sold(300, "EUR")
    assert decoded(Sold, old("test_testing.Sold", '{"cents": 5}', version=2)) == Sold(5, "EUR")
    assert decoded(Sold, old("test_testing.Sold", b'{"cents":5,"currency":"CHF","note":"x"}', version=3)) == Sold(5, "CHF", "x")


def test_a_scenario_begins_with_events_that_older_code_stored() -> None:
    before = (old("test_testing.Sold", {"euros": 3}), old("test_testing.Sold", {"cents": 5}, version=2), Sold(1, "EUR"))
    given(*before).when(Refund("s-1")).then(Sold(-306, "EUR"))
    assert [event.metadata for event in stored(*before)] == [None, b'{"schema": 2}', b'{"schema":3}']


def test_an_old_event_that_no_code_understands_is_an_error() -> None:
    with pytest.raises(es.UnknownEvent, match="only up to 3"):
        decoded(Sold, old("test_testing.Sold", {}, version=4))
    with pytest.raises(es.PayloadInvalid, match="KeyError"):
        decoded(Sold, old("test_testing.Sold", {"cents": 3}))
    with pytest.raises(es.PayloadInvalid):
        decoded(Sold, old("test_testing.Sold", "not JSON"))
    with pytest.raises(AssertionError, match="is stored as"):
        decoded(Sold, old("Sold", {}))


def test_then_needs_a_when() -> None:
    with pytest.raises(AssertionError, match="when"):
        given().then()
