"""The clock of timers (W2): a clock that cannot be trusted sends nothing, until it is right again or confirmed."""

from __future__ import annotations

from eventstore.domain.timers.timer_clock import DIFFERENCE_US, JUMP_US, TimerClock

HOUR_US = 3_600_000_000


class Clocks:
    def __init__(self) -> None:
        self.true_us, self.skew_us, self.difference_us = 10**15, 0, None
        self.clock = TimerClock(lambda: self.true_us + self.skew_us, lambda: self.true_us, lambda: self.difference_us)

    difference_us: int | None

    def held_after(self, step_us: int = 0) -> str | None:
        self.skew_us += step_us
        self.true_us += 1_000_000
        self.clock.now_us()
        return self.clock.held


def test_steps_of_less_than_an_hour_are_followed_and_time_that_passes_is_no_step() -> None:
    clocks = Clocks()
    assert clocks.held_after(JUMP_US) is None
    assert clocks.held_after(-JUMP_US) is None
    clocks.true_us += 1000 * HOUR_US  # the machine slept
    assert clocks.held_after() is None


def test_a_jump_holds_until_the_clock_is_right_again_or_somebody_confirms_it() -> None:
    for jump_us in (2 * HOUR_US, -2 * HOUR_US, 24 * 365 * HOUR_US):
        clocks = Clocks()
        assert "confirm-clock" in str(clocks.held_after(jump_us))
        assert "confirm-clock" in str(clocks.held_after(1_000_000))
        assert clocks.held_after(-jump_us) is None
        clocks.held_after(jump_us)
        clocks.clock.confirm()
        assert clocks.held_after() is None
        assert "confirm-clock" in str(clocks.held_after(-jump_us))


def test_a_clock_that_is_far_from_that_of_the_cluster_holds_and_no_confirmation_helps() -> None:
    clocks = Clocks()
    clocks.difference_us = DIFFERENCE_US
    assert clocks.held_after() is None
    clocks.difference_us = -DIFFERENCE_US - 1
    clocks.clock.confirm()
    assert "from that of etcd" in str(clocks.held_after())
