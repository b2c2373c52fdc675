"""Subscriptions: items in order, CaughtUp once, credit that neither runs out nor accumulates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.client.session.subscription import SessionSubscription
from eventstore.errors import Diverged, Overloaded, ProtocolError
from eventstore.event_identity import LogPosition
from eventstore.model import CaughtUp, Event, NewEvent
from eventstore.protocol.answers import Failure, Ok, Page
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.requests import Subscribe
from eventstore.records.event_filter import EventFilter, event_filter
from tests.protocol.records import make_record


def request_of(subscription: SessionSubscription) -> Subscribe:
    subscription.request_id = 1
    _, request = RequestDecoder().decode(subscription.encode()[LENGTH_BYTES:])
    assert isinstance(request, Subscribe)
    return request


def page(first: int, *types: str, at_end: bool = False) -> Page:
    events = [NewEvent(name) for name in types]
    return Page(first + len(types) - 1, at_end, make_record("a", f"c-{first}", events, sequence=first, first_version=first))


def sequences(subscription: SessionSubscription) -> list[int]:
    return [item.sequence if isinstance(item, Event) else -item.sequence for item in subscription.take()]


def test_items_come_in_order_and_caught_up_once() -> None:
    subscription = SessionSubscription(0, EventFilter())
    for answer in (page(1, "A", "B"), page(3, "A", at_end=True), page(4, "A", at_end=True), page(5, "A"), Page(9, True, b"")):
        subscription.receive(answer, 100)
    assert [sequences(subscription) for _ in range(5)] == [[1, 2], [3, -3], [4], [5], []]
    assert not subscription.ready


def test_events_up_to_the_start_and_of_other_types_are_filtered_out() -> None:
    subscription = SessionSubscription(2, event_filter(["A"]))
    subscription.receive(page(1, "A", "A", "A", "B", "A", at_end=True), 100)
    items = subscription.take()
    assert [item.sequence for item in items if isinstance(item, Event)] == [3, 5]
    assert isinstance(items[-1], CaughtUp)


def test_after_a_reconnect_nothing_is_delivered_twice() -> None:
    subscription = SessionSubscription(0, EventFilter())
    subscription.receive(page(1, "A", "A"), 100)
    for _ in range(2):
        assert request_of(subscription).after == 1
    subscription.receive(page(1, "A", "A"), 100)
    subscription.receive(page(3, "A", at_end=True), 100)
    assert [sequences(subscription) for _ in range(3)] == [[1, 2], [], [3, -3]]
    assert request_of(subscription).after == 2


@pytest.mark.parametrize("answer", [page(2, "B", "A", at_end=True), page(3, "A"), Page(1, True, b"")])
def test_a_store_without_the_last_event_received_ends_the_subscription(answer: Page) -> None:
    """It was restored from an older copy while the connection was down, and may have overtaken the subscription since."""
    subscription = SessionSubscription(0, EventFilter())
    subscription.receive(page(1, "A"), 100)
    subscription.receive(page(2, "A"), 100)
    assert [sequences(subscription) for _ in range(2)] == [[1], [2]]
    request_of(subscription)
    subscription.receive(answer, 100)
    for _ in range(2):
        with pytest.raises(Diverged, match=r"a subscription stands at the event of sequence 2.*from the first event"):
            subscription.take()


def test_events_that_took_the_place_of_some_that_a_filter_left_out_are_delivered() -> None:
    subscription = SessionSubscription(0, event_filter(["A"]))
    subscription.receive(page(1, "A", "B", "B", at_end=True), 100)
    assert sequences(subscription) == [1, -3]
    assert request_of(subscription).after == 0
    subscription.receive(page(1, "A", "B", "B"), 100)
    subscription.receive(Page(9, True, b""), 100)
    assert [sequences(subscription) for _ in range(2)] == [[], []]
    subscription = SessionSubscription(0, event_filter(["A"]))
    subscription.receive(page(1, "A"), 100)
    subscription.receive(Page(9, True, b""), 100)
    assert [sequences(subscription) for _ in range(2)] == [[1], [-9]]
    assert request_of(subscription).after == 0
    subscription.receive(page(1, "A"), 100)
    subscription.receive(page(2, "A"), 100)
    assert [sequences(subscription) for _ in range(2)] == [[], [2]]


def test_a_place_is_checked_by_the_server_with_each_request_until_an_event_was_received() -> None:
    subscription = SessionSubscription(LogPosition(2, "00000002"), event_filter(["A"]))
    assert request_of(subscription).after == "2-00000002"
    subscription.receive(page(3, "B", "B", at_end=True), 100)
    assert sequences(subscription) == [-4]
    assert request_of(subscription).after == "2-00000002"
    subscription.receive(page(3, "A", "B"), 100)  # in the place of one that the filter left out
    assert sequences(subscription) == [3]
    assert request_of(subscription).after == 2  # and the event 3 is to come first


def test_a_subscription_from_the_end_asks_for_the_end_until_the_server_has_said_where_it_is() -> None:
    subscription = SessionSubscription(None, EventFilter())
    assert request_of(subscription).after is None
    assert request_of(subscription).after is None
    subscription.receive(Page(7, True, b""), 100)
    assert request_of(subscription).after == 7
    subscription.receive(page(7, "A", "A"), 100)
    assert [sequences(subscription) for _ in range(2)] == [[-7], [8]]


def test_grants_are_rare_and_return_the_bytes_taken() -> None:
    subscription = SessionSubscription(0, EventFilter(), window_bytes=1000)
    due = []
    for number in range(1, 11):
        subscription.receive(page(number, "A"), 200)
        subscription.take()
        due.append(subscription.credit_due())
    assert due == [0, 0, 600, 0, 0, 600, 0, 0, 600, 0]


@given(st.lists(st.sampled_from(["send", "take", "lose"]), max_size=60), st.integers(1, 700))
def test_credit_never_runs_out_while_nothing_waits_and_never_runs_away(steps: list[str], size: int) -> None:
    window = 1000
    subscription = SessionSubscription(0, EventFilter(), window_bytes=window)
    credit, waiting, sequence = request_of(subscription).credit, 0, 1
    for step in steps:
        if step == "send" and credit > 0:
            subscription.receive(page(sequence, "A"), size)
            credit, waiting, sequence = credit - size, waiting + size, sequence + 1
        elif step == "take" and subscription.ready:
            subscription.take()
            credit, waiting = credit + subscription.credit_due(), waiting - size
        elif step == "lose":
            request = request_of(subscription)
            credit, sequence = request.credit, (request.after or 0) + 1
        assert waiting < window + size
        assert waiting or credit > 0, "the server may not send, and nothing is left to take"


def test_events_that_arrived_before_an_error_are_delivered_first() -> None:
    subscription = SessionSubscription(0, EventFilter())
    subscription.receive(page(1, "A"), 100)
    assert subscription.receive(Failure(Overloaded("too many subscriptions")), 50)
    assert sequences(subscription) == [1]
    with pytest.raises(Overloaded):
        subscription.take()
    with pytest.raises(Overloaded):
        subscription.take()


@pytest.mark.parametrize("wrong", [Ok((1,)), Page(None, True, b""), Page(3, True, b"")])
def test_an_answer_that_is_not_a_page_or_leads_back_is_a_protocol_error(wrong: Ok | Page) -> None:
    subscription = SessionSubscription(5, EventFilter())
    assert subscription.receive(wrong, 10)
    with pytest.raises(ProtocolError):
        subscription.take()
