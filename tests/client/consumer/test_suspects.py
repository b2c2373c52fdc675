"""What a member handles apart: suspects, each alone, and messages that failed in place and wait."""

from __future__ import annotations

from typing import Any

import pytest

from eventstore.client.consumer.commit_window import DeliveryTracker
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.member_state import MemberState
from eventstore.client.consumer.turns import Turns
from eventstore.records.consumer_groups import AssignedQueue
from tests.client.consumer.test_member_state import answer, next_pull, receive, taken

ORDERS: list[dict[str, Any]] = [{"mode": "sequential"}, {"order": "key"}]
in_each_order = pytest.mark.parametrize("order", ORDERS, ids=["sequential", "by key"])


def member(order: dict[str, Any], *queues: AssignedQueue, **settings: int) -> MemberState:
    made = MemberState(MemberOptions("billing", "m-1", {"orders": None}, **order, **settings), DeliveryTracker())  # type: ignore[arg-type]
    made.assigned(1, queues)
    return made


def suspects(queue: int, end: int = 5, killer: int | None = None) -> AssignedQueue:
    return AssignedQueue("orders", queue, 0, None, end, killer)


def pulled(state: MemberState) -> Delivery:
    """Pulls the next suspect and takes it."""
    pull = next_pull(state)
    assert pull.request.messages_max == 1
    receive(state, pull, answer(pull, range(pull.request.wants[0][2], pull.request.wants[0][2] + 1)))
    (message,) = taken(state)
    return message


def suspend(state: MemberState, message: Delivery, due: float) -> None:
    """Has the message fail, and its failure stored."""
    message.retry("no")
    for _, places in state.failures():
        for window, offset in places:
            state.suspects.suspend(window, offset, due)


def commit(state: MemberState) -> None:
    for _, moved in list(state.commits()):
        state.committed(moved)


@in_each_order
def test_suspects_go_on_while_a_message_of_another_queue_waits(order: dict[str, Any]) -> None:
    state = member(order, suspects(0), suspects(1))
    suspend(state, pulled(state), due=1e9)
    for offset in range(5):
        message = pulled(state)
        assert (message.queue, message.queue_offset) == (1, offset)
        message.done()
        assert state.suspects.commit_due()
        commit(state)
    assert {want[1] for want in next_pull(state).request.wants} == {1}, "queue 0 still waits"


@in_each_order
def test_what_is_due_waits_until_the_suspect_is_committed_and_then_has_its_turn(order: dict[str, Any]) -> None:
    state = member(order, suspects(0), suspects(1))
    failing = pulled(state)
    suspend(state, failing, due=1.0)
    pull = next_pull(state)
    assert not state.hand_out_again(2.0), "the suspect travels"
    receive(state, pull, answer(pull, range(1)))
    assert not state.hand_out_again(2.0)
    (suspect,) = taken(state)
    suspect.done()
    assert not state.hand_out_again(2.0), "a death would still be blamed on it"
    assert state.suspects.next_due(2.0) == float("inf")
    commit(state)
    assert state.suspects.next_due(2.0) == 1.0
    assert state.hand_out_again(2.0)
    assert taken(state) == [failing]
    assert state.next_pull() is None, "a suspect is pulled with nothing in hand"


@in_each_order
def test_messages_that_fail_for_ever_without_a_delay_take_turns_with_suspects(order: dict[str, Any]) -> None:
    state = member(order, *(suspects(queue) for queue in range(3)))
    for _ in range(2):
        suspend(state, pulled(state), due=0.0)
    for offset in range(5):
        message = pulled(state)
        assert message.queue_offset == offset
        message.done()
        commit(state)
        assert state.hand_out_again(0.0)
        first, second = taken(state)
        suspend(state, first, due=0.0)
        assert not state.hand_out_again(0.0), "first a suspect"
        suspend(state, second, due=0.0)


@in_each_order
def test_a_member_without_room_goes_on_with_suspects(order: dict[str, Any]) -> None:
    state = member(order, AssignedQueue("orders", 0, 0, None), hold_messages=3)
    pull = next_pull(state)
    receive(state, pull, answer(pull, range(3)))
    first, *others = taken(state)
    suspend(state, first, due=1e9)
    for message in others:
        message.done()
    assert state.next_pull() is None
    state.assigned(2, [AssignedQueue("orders", 0, 0, None), suspects(1)])
    assert pulled(state).queue == 1


def test_a_suspect_is_not_pulled_while_another_key_of_a_waiting_queue_is_in_hand() -> None:
    state = member({"order": "key"}, AssignedQueue("orders", 0, 0, None))
    pull = next_pull(state)
    receive(state, pull, answer(pull, range(2)))
    first, second = taken(state)
    suspend(state, first, due=1e9)
    state.assigned(2, [AssignedQueue("orders", 0, 0, None), suspects(1)])
    assert state.next_pull() is None
    second.done()
    pulled(state)


@in_each_order
def test_what_is_done_after_all_while_it_waits_is_not_handed_out_again(order: dict[str, Any]) -> None:
    state = member(order, suspects(0))
    message = pulled(state)
    suspend(state, message, due=1.0)
    message.done()
    assert not state.hand_out_again(2.0)
    assert taken(state) == []
    commit(state)
    assert pulled(state).queue_offset == 1


@in_each_order
def test_a_killer_that_gets_more_attempts_is_pulled_again(order: dict[str, Any]) -> None:
    state = member(order, suspects(0, killer=0))
    pull = next_pull(state)
    receive(state, pull, answer(pull, range(1)))
    assert taken(state) == []
    ((_, [(window, offset)]),) = state.failures()
    state.suspects.suspend(window, offset, 1.0)
    assert state.hand_out_again(2.0)
    message = pulled(state)
    assert (message.queue_offset, message.is_mine) == (0, True)
    message.done()
    commit(state)
    assert pulled(state).queue_offset == 1


def test_a_window_that_moved_is_not_waited_for() -> None:
    state = member({"order": "key"}, suspects(0), suspects(1))
    assert pulled(state).queue == 0
    assert state.next_pull() is None
    state.assigned(2, [suspects(1)])
    assert pulled(state).queue == 1


def members(turns: Turns, *queues: AssignedQueue) -> list[MemberState]:
    """Returns a member for each queue, on a shard of its own; none is woken."""
    made = []
    for queue in queues:
        state = MemberState(MemberOptions("billing", "m-1", {"orders": None}), DeliveryTracker(), turns)
        turns.join(state.suspects, lambda: None)
        state.assigned(1, [queue])
        made.append(state)
    return made


def test_of_the_members_on_several_shards_one_has_a_suspect_in_hand_and_the_others_nothing() -> None:
    first, second, calm = members(Turns(), suspects(0, end=1), suspects(1, end=1), suspects(2, end=0))
    suspect = pulled(first)
    assert second.next_pull() is None
    assert calm.next_pull() is None
    suspect.done()
    assert second.next_pull() is None, "a death would still be blamed on it"
    commit(first)
    assert pulled(second).queue_offset == 0
    assert first.next_pull() is None


def test_a_suspect_waits_until_what_is_in_hand_on_another_shard_is_done_and_committed() -> None:
    calm, state = members(Turns(), suspects(0, end=0), suspects(1))
    calm.suspects.turns.leave(state.suspects)
    pull = next_pull(calm)
    calm.suspects.pulls = True
    state.suspects.turns.join(state.suspects, lambda: None)
    assert state.next_pull() is None, "a pull is in flight"
    calm.suspects.pulls = False
    receive(calm, pull, answer(pull, range(2)))
    for message in taken(calm):
        assert state.next_pull() is None
        assert not calm.suspects.commit_due()
        message.done()
    assert state.next_pull() is None
    assert calm.suspects.commit_due()
    commit(calm)
    assert pulled(state).queue_offset == 0


def test_a_member_whose_shard_is_away_is_not_waited_for() -> None:
    calm, state = members(Turns(), suspects(0, end=0), suspects(1))
    state.suspects.turns.leave(state.suspects)
    pull = next_pull(calm)
    receive(calm, pull, answer(pull, range(2)))
    state.suspects.turns.join(state.suspects, lambda: None)
    assert state.next_pull() is None
    calm.suspects.turns.away(calm.suspects, True)
    pulled(state)
    assert calm.next_pull() is None
    calm.suspects.turns.away(state.suspects, True)
    assert calm.next_pull() is not None, "its suspects wait until its shard is back"


def test_members_are_woken_as_long_as_one_has_suspects_and_once_when_it_has_none_left() -> None:
    turns, woken = Turns(), []
    (state,) = members(turns, suspects(0, end=1))
    (calm,) = members(turns, suspects(1, end=0))
    turns.join(calm.suspects, lambda: woken.append("calm"))
    turns.changed(state.suspects)
    assert woken == ["calm"]
    pulled(state).done()
    commit(state)
    turns.changed(state.suspects)
    assert woken == ["calm"] * 2
    turns.changed(state.suspects)
    assert woken == ["calm"] * 2
