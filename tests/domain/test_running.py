"""A domain as it runs in command mailboxes: changes, refusals, aggregates of whichever class their events say."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, cast

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.event_type import event_type
from eventstore.domain.running import Change, Decided, Running, Seat
from eventstore.domain.testing import stored
from eventstore.errors import ShuttingDown
from eventstore.model import Event
from eventstore_mailbox import Unrestorable
from tests.server.tallies import Add, Added, Break, Raise, RenameBell, Renamed, Ring, Rung, Wait, app, gates


def running(*pages: list[Event] | Exception, domain: d.Domain = app) -> Running:
    """On a store that has these pages of one aggregate, or fails where an error is."""

    async def read(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        for page in pages:
            await trio.lowlevel.checkpoint()
            if isinstance(page, Exception):
                raise page
            yield page

    return Running(domain, read)


def decided(command: object, command_id: str = "c-1") -> Decided:
    raw = d.encode_command(command)
    handler, decoded = app.decode(raw.type, raw.payload, raw.aggregate_id)
    return Decided(handler, decoded, command_id)


def handle(domain: Running, command: object, seat: Seat) -> Change | None:
    return cast("Change | None", domain.handle(decided(command), seat))


async def test_a_change_is_a_commit_on_the_version_it_was_decided_on() -> None:
    domain = running(stored(Added(1, 0), Added(2, 1), aggregate_id="a"))
    seat = await domain.restore("a")
    change = handle(domain, Add("a", 5), seat)
    assert change == ("a", 2, "c-1", None, (flat.encode(event_type(Added).encode(Added(5, 3))), 1))
    assert handle(domain, Add("a", 5), seat)[1] == 3  # type: ignore[index] # it is a change
    assert handle(domain, Raise("a", 0), seat) is None


async def test_an_aggregate_that_does_not_exist_is_of_the_class_its_first_command_is_for() -> None:
    domain = running()
    seat = await domain.restore("a")
    assert handle(domain, Ring("a"), seat)[:3] == ("a", 0, "c-1")  # type: ignore[index] # it is a change
    with pytest.raises(es.InvalidArgument, match=r"'a' is a .*Bell, and .*add is for a .*Tally"):
        handle(domain, Add("a"), seat)
    assert domain.untouched(seat)


@pytest.mark.parametrize("first", [Added(1, 0), Renamed("x")], ids=["of one class", "of two classes"])
async def test_an_aggregate_that_exists_is_of_the_class_its_events_are_of(first: object) -> None:
    domain = running(stored(first, Added(1, 1), aggregate_id="a"))
    seat = await domain.restore("a")
    with pytest.raises((es.InvalidArgument, es.UnknownEvent)):
        handle(domain, Ring("a"), seat)
    assert domain.untouched(seat)
    assert handle(domain, Add("a"), seat)[1] == 2  # type: ignore[index] # it is a change


async def test_events_of_two_classes_are_those_of_the_command_that_comes() -> None:
    domain = running(stored(Renamed("x"), Renamed("y"), aggregate_id="b"), [*stored(Rung(0), aggregate_id="b", version=3)])
    seat = await domain.restore("b")
    assert handle(domain, RenameBell("b", "z"), seat)[1] == 3  # type: ignore[index] # it is a change


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("bug", es.HandlerFailed, "tallies.break_off raised ValueError: a bug"),
        ("text that is none", es.Rejected, "^wrapped$"),
        ("code that is none", es.HandlerFailed, "OddlyCoded: odd; its code is 'odd', and no number"),
        ("a word of the server's own", es.HandlerFailed, "ShuttingDown: not for a handler to say"),
        ("exit", SystemExit, "3"),
    ],
)
async def test_what_a_handler_raises_is_made_fit_to_travel_and_the_aggregate_is_touched(
    how: str, error: type[BaseException], said: str
) -> None:
    domain = running()
    seat = await domain.restore("a")
    with pytest.raises(error, match=said) as caught:
        handle(domain, Break("a", how), seat)
    assert not isinstance(caught.value, ShuttingDown)
    assert not domain.untouched(seat)


async def test_an_error_of_the_domain_has_a_bounded_number_of_fields() -> None:
    domain = running()
    with pytest.raises(es.Rejected) as caught:
        handle(domain, Break("a", "too many fields"), await domain.restore("a"))
    assert caught.value.fields["reason"] == "rejected"
    assert 8 < len(caught.value.fields) < 128


async def test_an_async_handler_that_is_cancelled_leaves_an_aggregate_that_is_restored() -> None:
    domain = running()
    seat = await domain.restore("a")
    gates.clear()
    coroutine = cast("Coroutine[Any, Any, Change | None]", domain.handle(decided(Wait("a")), seat))
    with trio.move_on_after(0):
        await coroutine
    assert not domain.untouched(seat)
    seat = await domain.restore("a")
    gates["a"].set()
    change = await cast("Coroutine[Any, Any, Change | None]", domain.handle(decided(Wait("a")), seat))
    assert change is not None
    assert change[:3] == ("a", 0, "c-1")
    assert domain.untouched(seat)
    gates.clear()


# -- restoring ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "error"),
    [
        ([es.Corrupt("file", 7, "rot")], es.Corrupt),
        ([es.ReadFailed("input/output error")], es.ReadFailed),
        ([stored(Added(1, 0), aggregate_id="a", version=2)], es.InvalidArgument),
        ([[Event(("a", 1, "Added", b"{}", None, "c", 0, 1, 0))]], es.PayloadInvalid),
        ([stored(Added(1, 0), aggregate_id="a"), stored(Rung(0), aggregate_id="a", version=2)], es.UnknownEvent),
    ],
    ids=["corrupt", "unreadable", "a gap", "a payload that does not fit", "an event of another class"],
)
async def test_what_cannot_be_restored_fails_the_command(pages: list[Any], error: type[Exception]) -> None:
    with pytest.raises(Unrestorable) as caught:
        await running(*pages).restore("a")
    assert type(caught.value.error) is error


@pytest.mark.parametrize("make", [es.ConnectionLost, es.Overloaded, ShuttingDown])
async def test_a_store_that_cannot_be_reached_is_no_reason_to_fail_the_command(make: Callable[[str], Exception]) -> None:
    with pytest.raises(es.EventStoreError) as caught:
        await running(stored(Added(1, 0), aggregate_id="a"), make("later")).restore("a")
    assert caught.value.retriable
