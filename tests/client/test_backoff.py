"""Backoff: the first attempt is immediate, then delays grow, and the loss expires."""

from __future__ import annotations

from eventstore.client.backoff import DELAY_S_MAX, FIRST_DELAY_S, STABLE_S, Backoff


def test_the_first_attempt_is_immediate_and_the_following_ones_double_up_to_a_limit() -> None:
    backoff = Backoff(30, chance=lambda: 1.0)
    backoff.lost(0)
    assert [backoff.delay_s() for _ in range(4)] == [0, FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert [backoff.delay_s() for _ in range(20)][-1] == DELAY_S_MAX


def test_jitter_takes_up_to_half_of_a_delay() -> None:
    delays = []
    for chance in (0.0, 0.5, 1.0):
        backoff = Backoff(30, chance=lambda chance=chance: chance)  # type: ignore[misc]
        backoff.lost(0)
        backoff.delay_s()
        delays.append(backoff.delay_s())
    assert delays == [0.5 * FIRST_DELAY_S, 0.75 * FIRST_DELAY_S, FIRST_DELAY_S]


def test_a_loss_expires_after_the_timeout_counted_from_its_beginning() -> None:
    backoff = Backoff(30)
    assert not backoff.expired(1000)
    backoff.lost(100)
    assert not backoff.expired(129)
    assert backoff.expired(130)


def test_a_connection_that_fails_at_once_does_not_end_the_loss() -> None:
    backoff = Backoff(30, chance=lambda: 1.0)
    backoff.lost(100)
    backoff.delay_s()
    backoff.connected(110)
    backoff.lost(111)
    assert backoff.delay_s() > 0
    assert backoff.expired(130)


def test_an_answer_ends_the_loss() -> None:
    backoff = Backoff(30)
    backoff.lost(100)
    backoff.recovered()
    backoff.lost(120)
    assert backoff.delay_s() == 0
    assert not backoff.expired(140)


def test_a_connection_that_lasted_ends_the_loss() -> None:
    backoff = Backoff(30)
    backoff.lost(100)
    backoff.delay_s()
    backoff.connected(101)
    backoff.lost(101 + STABLE_S)
    assert backoff.delay_s() == 0
    assert not backoff.expired(131)
