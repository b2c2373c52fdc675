"""Timers end once, whatever dies and whichever clock steps; a checker that finds nothing must find planted mistakes."""

from __future__ import annotations

import pytest

from tests.domain.timers.simulation import Mistake, run

STEPS = 400


def test_each_timer_takes_effect_once_and_ends() -> None:
    for seed in range(150):
        assert run(seed, STEPS) == [], f"seed {seed}"


@pytest.mark.parametrize("mistake", [each for each in Mistake if each is not Mistake.NONE])
def test_a_planted_mistake_is_found(mistake: Mistake) -> None:
    for seed in range(200):
        try:
            if run(seed, STEPS, mistake):
                return
        except AssertionError:
            return
    raise AssertionError(f"{mistake.name} was not found")
