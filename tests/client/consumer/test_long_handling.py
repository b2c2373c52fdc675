"""What is said in the log of messages that have been in hand for long."""

from __future__ import annotations

from typing import Any

import pytest

from eventstore.client.consumer.long_handling import LongHandling
from eventstore.client.consumer.member_state import MemberState
from eventstore.records.consumer_groups import AssignedQueue
from tests.client.consumer.test_member_state import answer, next_pull, receive, taken
from tests.client.consumer.test_suspects import member, suspend

in_any_order = pytest.mark.parametrize(
    "order", [{}, {"mode": "sequential"}, {"order": "key"}], ids=["parallel", "sequential", "by key"]
)


def holding(order: dict[str, Any]) -> tuple[MemberState, LongHandling]:
    """A member that holds messages of two queues, none of them handed out, and says what it has had in hand for 60 seconds."""
    state = member(order, AssignedQueue("orders", 0, 0, None), AssignedQueue("orders", 1, 0, None))
    pull = next_pull(state)
    receive(state, pull, answer(pull, range(3), range(3)))
    return state, LongHandling(state.options, state.ready)


def said(state: MemberState, watch: LongHandling, seconds: range, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Looks at each of these seconds, and returns those at which something was said."""
    at = []
    for second in seconds:
        watch.look(state.windows, float(second), apart=False)
        if caplog.records:
            at.append(second)
            caplog.clear()
    return at


@in_any_order
def test_a_message_in_hand_is_said_at_growing_intervals(order: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    state, watch = holding(order)
    taken(state, 1)
    first, second, third = said(state, watch, range(500), caplog)
    assert 60 <= first < 70
    assert 120 <= second < 140
    assert 240 <= third < 280


@in_any_order
def test_what_was_not_handed_out_is_not_said(order: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    state, watch = holding(order)
    assert said(state, watch, range(500), caplog) == []


@in_any_order
def test_what_is_finished_in_time_is_not_said(order: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    state, watch = holding(order)
    begin = 0
    while messages := taken(state, 1):
        assert said(state, watch, range(begin, begin + 55), caplog) == []
        messages[0].done()
        begin += 55
    assert begin == 6 * 55


@pytest.mark.parametrize("order", [{"mode": "sequential"}, {"order": "key"}], ids=["sequential", "by key"])
def test_what_waits_for_its_next_attempt_is_in_nobodys_hand(order: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    state, watch = holding(order)
    (message,) = taken(state, 1)
    suspend(state, message, due=200.0)
    assert said(state, watch, range(200), caplog) == []
    assert state.hand_out_again(200.0)
    assert said(state, watch, range(200, 400), caplog) == []
    assert message in taken(state)
    assert said(state, watch, range(400, 500), caplog)


def test_it_names_the_message_the_member_and_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    state, watch = holding({})
    taken(state)
    for second, apart in ((0, False), (60, False), (120, True)):
        watch.look(state.windows, float(second), apart=apart)
    alone, together = (record.getMessage() for record in caplog.records)
    assert alone.startswith("message 0 of queue 0 of orders is in hand since ")
    assert "for 60 s, at member m-1 of group billing, and the first of 1 other queues too: " in alone
    assert "all queues of this member wait for it" in together
