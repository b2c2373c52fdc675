"""How long a member has had the same message in hand."""

from __future__ import annotations

from eventstore.broker.groups.attempts import HeldPage
from eventstore.broker.groups.in_hand import InHand, OldestInHand
from eventstore.broker.retry_policy import RetryPolicy
from tests.broker.groups.test_groups import House


def look(held: OldestInHand, now: float) -> tuple[object, ...] | None:
    found = found_by(held, now)
    return None if found is None else found[:6]


def found_by(held: OldestInHand, now: float) -> InHand | None:
    for _ in held.looking(now):
        pass
    return held.oldest.get("billing")


def hand_out(house: House, member: str, queue: int, first: int, count: int) -> None:
    page = HeldPage(first, first + count, first, count)
    house.groups.handed_out("billing", member, [(("orders", queue), page)])


def test_the_oldest_message_in_hand_is_the_one_that_its_groups_offset_stands_at_the_longest() -> None:
    house = House()
    held, generation = OldestInHand(house.groups), house.groups.join("billing", "a", {"orders": None}).generation
    assert look(held, 1) is None, "nothing was handed out"
    hand_out(house, "a", 0, 0, 5)
    hand_out(house, "a", 1, 0, 5)
    assert look(held, 2) == ("billing", "a", "orders", 0, 0, 0)
    house.groups.commit("billing", "a", generation, [("orders", 0, 2)])
    assert look(held, 10) == ("billing", "a", "orders", 1, 0, 8), "the other queue moves on"
    hand_out(house, "a", 1, 5, 5)
    assert look(held, 20) == ("billing", "a", "orders", 1, 0, 18), "further pages do not make it younger"
    house.groups.commit("billing", "a", generation, [("orders", 1, 10)])
    assert look(held, 30) == ("billing", "a", "orders", 0, 2, 20)
    house.groups.commit("billing", "a", generation, [("orders", 0, 5)])
    assert look(held, 40) is None, "all is done"


def test_a_message_that_may_wait_for_its_next_attempt_or_was_taken_away_is_not_in_hand() -> None:
    house = House()
    held = OldestInHand(house.groups)
    house.groups.set_policy("billing", RetryPolicy((10, 60)))
    house.groups.join("billing", "a", {"orders": None})
    hand_out(house, "a", 0, 0, 5)
    assert look(held, 1) is not None
    house.groups.offsets.attempts.raise_to("billing", "orders", 0, 0, 1)
    assert look(held, 2) is None
    assert look(held, 11.5) is None
    assert look(held, 17) == ("billing", "a", "orders", 0, 0, 5), "its second attempt hangs"
    house.groups.offsets.attempts.raise_to("billing", "orders", 0, 0, 2)
    assert look(held, 20) is None
    assert look(held, 79) is None
    assert look(held, 100) == ("billing", "a", "orders", 0, 0, 20)
    house.groups.leave("billing", "a")
    assert look(held, 101) is None


def test_after_a_death_it_is_said_that_other_queues_wait_for_a_message_in_hand() -> None:
    house = House()
    held, groups = OldestInHand(house.groups), house.groups
    groups.set_policy("billing", RetryPolicy((1,)))
    groups.join("billing", "a", {"orders": None})
    hand_out(house, "a", 1, 0, 5)
    found = found_by(held, 1)
    assert found is not None
    assert not found.alone
    generation = groups.join("billing", "a", {"orders": None}).generation  # another one under its name: it died
    hand_out(house, "a", 0, 0, 1)
    found = found_by(held, 2)
    assert found is not None
    assert (found.queue, found.alone) == (0, True), "the suspects of queue 1 are handled alone, too"
    groups.commit("billing", "a", generation, [("orders", 1, 5)])
    found = found_by(held, 3)
    assert found is not None
    assert (found.queue, found.alone) == (0, False)
    groups.leave("billing", "a")


def test_a_look_at_many_queues_lets_other_tasks_run() -> None:
    house = House()
    for number in range(200):
        house.groups.join("billing", f"member-{number}", {"orders": None})
        hand_out(house, f"member-{number}", 0, 0, 1)
    assert sum(1 for _ in OldestInHand(house.groups).looking(1.0)) == 1
