"""Histories with crashes, pauses, cuts, lost folders and a slow registry: nothing that was acknowledged is ever missing."""

from __future__ import annotations

import datetime

import pytest

from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.history import run
from tests.cluster.simulation.mistakes import MISTAKES, Mistake
from tests.cluster.simulation.world import World

_GROUPS, _SEEDS_EACH = 12, 25


def _first_today() -> int:
    """Returns where today's seeds begin: others each day, the same in all processes of a run."""
    return datetime.datetime.now(datetime.UTC).date().toordinal() * 1000


@pytest.mark.parametrize("group", range(_GROUPS))
def test_what_was_acknowledged_is_in_every_later_leader_and_all_replicas_agree_after_a_quiet_time(group: int) -> None:
    first = _first_today() + group * _SEEDS_EACH
    print(f"seeds {first} to {first + _SEEDS_EACH - 1}")
    acknowledged = sum(sum(map(len, run(seed).checks.records)) for seed in range(first, first + _SEEDS_EACH))
    assert acknowledged > 50 * _SEEDS_EACH  # a history in which nothing happens proves nothing


def test_a_seed_is_one_history() -> None:
    assert run(7).checks.records == run(7).checks.records


@pytest.mark.heavy
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.rule} {mistake.what}")
def test_a_rule_that_is_left_out_breaks_a_history(mistake: Mistake) -> None:
    def breaks(seed: int) -> bool:
        with mistake.planted():
            try:
                World(seed).run()
            except (Broken, AssertionError, ValueError):
                return True
        return False

    assert any(breaks(seed) for seed in range(mistake.seeds))
