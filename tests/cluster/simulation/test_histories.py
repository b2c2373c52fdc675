"""Histories with crashes, pauses, cuts, lost folders and a slow registry: nothing that was acknowledged is ever missing."""

from __future__ import annotations

import datetime

import pytest

from tests.cluster.simulation.history import run
from tests.cluster.simulation.mistakes import MISTAKES, Mistake

_SEEDS_EACH = 25
_GROUPS = [pytest.param(group, marks=[pytest.mark.long] * (group >= 3)) for group in range(12)]
_REAL_LOGS = 10
_WITH_LOSS = 20


def _first_today() -> int:
    """Returns where today's seeds begin: others each day, the same in all processes of a run."""
    return datetime.datetime.now(datetime.UTC).date().toordinal() * 1000


@pytest.mark.parametrize("group", _GROUPS)
def test_what_was_acknowledged_is_in_every_later_leader_and_all_replicas_agree_after_a_quiet_time(group: int) -> None:
    first = _first_today() + group * _SEEDS_EACH
    print(f"seeds {first} to {first + _SEEDS_EACH - 1}")
    worlds = [run(seed) for seed in range(first, first + _SEEDS_EACH)]
    assert sum(sum(map(len, world.checks.records)) for world in worlds) > 50 * _SEEDS_EACH  # without, it proves nothing
    split = [world for world in worlds if world.splitting]
    assert any(world.family.given for world in split)
    assert sum(world.family.aggregates.total for world in split) > 50 * len(split)
    assert sum(world.moving for world in worlds) > _SEEDS_EACH / 3
    assert sum(world.decisions.checked for world in worlds) > 5 * _SEEDS_EACH
    assert sum(world.decisions.refused for world in worlds) > 5 * _SEEDS_EACH


@pytest.mark.heavy
def test_events_in_real_logs_survive_crashes_at_any_operation_of_their_disks() -> None:
    for seed in range(_first_today(), _first_today() + _REAL_LOGS):
        run(seed, real_logs=True)


@pytest.mark.heavy
def test_a_registry_that_is_lost_or_set_back_is_rebuilt_with_all_that_was_acknowledged() -> None:
    for seed in range(_first_today(), _first_today() + _SEEDS_EACH):
        run(seed, loses_registry=True)


@pytest.mark.heavy
def test_a_reader_is_refused_where_accepted_loss_took_its_events_and_nowhere_else() -> None:
    worlds = [run(seed, accepts_loss=True) for seed in range(_first_today(), _first_today() + _WITH_LOSS)]
    assert any(world.readers.refused for world in worlds)
    assert any(world.decisions.diverged for world in worlds)


def test_a_seed_is_one_history() -> None:
    assert run(7).checks.records == run(7).checks.records


@pytest.mark.heavy
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.rule} {mistake.what}")
def test_a_rule_that_is_left_out_breaks_a_history(mistake: Mistake) -> None:
    assert mistake.found_at() is not None
