"""When a silent server is asked whether it is there, and when others are."""

from __future__ import annotations

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
    patience = Patience(20, has_others=True)
    patience.waits(may_last=True)
    asked_at(patience, 9)
    patience.waits(may_last=False)
    assert asked_at(patience, 19) == ([1], 2)
