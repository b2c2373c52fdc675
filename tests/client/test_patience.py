"""When a silent server is asked whether it is there, and when others are."""

from __future__ import annotations

import pytest

from eventstore.client.patience import Patience


def asked_at(patience: Patience, seconds: float) -> tuple[list[float], float | None]:
    """Returns after which silences a ping is due, and after which one others are to be asked."""
    pings, others = [], None
    for _ in range(round(seconds / patience.look_s)):
        patience.looked()
        if patience.ping_due:
            pings.append(patience.silent_s)
        if patience.others_due and others is None:
            others = patience.silent_s
    return pings, others


def in_turn(patience: Patience, looks: int) -> list[tuple[float, bool, bool]]:
    """Has a call wait at every second look, and what may last at all of them. Returns of each the silence, and what is due."""
    found = []
    for look in range(looks):
        patience.waits(may_last=look % 2 == 0)
        patience.looked()
        found.append((patience.silent_s, patience.ping_due, patience.others_due))
    return found


def test_what_a_user_waits_for_is_asked_about_after_a_second_and_others_after_two() -> None:
    assert asked_at(Patience(20, has_others=True), 19) == ([1], 2)
    assert asked_at(Patience(20, has_others=False), 19) == ([10], None)


def test_what_may_wait_for_long_costs_a_shard_one_ping_in_ten_seconds() -> None:
    shard, watched = Patience(20, has_others=True), Patience(20, has_others=True, idle_ping_s=1.5)
    for each in (shard, watched):
        each.waits(may_last=True)
    assert asked_at(shard, 19) == ([10], 11)
    assert asked_at(watched, 19) == ([1.5], 2.5)


def test_what_begins_to_wait_in_a_long_silence_is_not_taken_for_late() -> None:
    patience = Patience(40, has_others=True)
    patience.waits(may_last=True)
    assert asked_at(patience, 9) == ([], None)
    patience.waits(may_last=False)
    assert asked_at(patience, 29) == ([10], 11)
    assert not patience.is_lost


@pytest.mark.parametrize(("idle_ping_s", "pinged", "others"), [(1.5, 1.5, 2.5), (None, 10, 11)])
def test_calls_that_come_and_go_beside_what_may_last_do_not_begin_the_silence_again(
    idle_ping_s: float | None, pinged: float, others: float
) -> None:
    patience = Patience(20, has_others=True, idle_ping_s=idle_ping_s)
    asked = in_turn(patience, 39)
    assert [silent_s for silent_s, ping_due, _ in asked if ping_due] == [pinged]
    assert next(silent_s for silent_s, _, others_due in asked if others_due) == others
    assert not patience.is_lost
    in_turn(patience, 1)
    assert patience.is_lost


def test_a_server_that_answers_is_silent_from_then_on() -> None:
    patience = Patience(20, has_others=True)
    in_turn(patience, 5)
    patience.heard()
    patience.waits(may_last=False)
    assert asked_at(patience, 19) == ([1], 2)
