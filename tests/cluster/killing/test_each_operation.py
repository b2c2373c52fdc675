"""Changes of a cluster while a process is killed at one operation on its disk or on the registry: they end in the same state.

Not at random, as in `simulation`: every operation of a history is counted, and there is a history for each way to die at it.
"""

from __future__ import annotations

import datetime
import functools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final
from unittest import mock

import pytest

from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica import leading
from eventstore_cluster.replica.actions import Action, Transact
from eventstore_cluster.replica.leading import Moving, copied, next_state
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import Seat, ShardState
from tests.cluster.killing.changes import CHANGES, Change, history
from tests.cluster.killing.operations import How, Kill, Operation, Operations
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.clone import Clone

_EVERY = 9
_HOW_A_COMMAND_DIES: Final[tuple[How, ...]] = ("before", "after", "late")
_A_CHANGE = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)


def _today() -> int:
    """Returns the seed of today: other delays each day, the same in all processes of a run."""
    return datetime.datetime.now(datetime.UTC).date().toordinal()


@functools.cache
def _undisturbed(change: Change, seed: int) -> tuple[dict[str, object], list[Kill], list[Operation]]:
    """Returns what a history without a kill ends with, which kills there can be in it, and its operations."""
    world = history(change, seed=seed)
    assert world.placed() != world.before, f"{change.what}: the command was refused, so a kill can disturb nothing"
    return world.outcome(), world.operations.kills(), world.operations.seen


def _killed(change: Change, kill: Kill, seed: int) -> None:
    """Raises Broken if a promise does not hold, something is stuck, or the end is another one."""
    outcome, _, operations = _undisturbed(change, seed)
    where = f"{change.what}, seed {seed}, {kill}: {operations[kill.number]}"
    try:
        world = history(change, kill, seed)
    except Broken as error:
        raise Broken(f"{where}: {error}") from error
    assert world.operations.struck, where
    assert world.operations.seen[kill.number] == operations[kill.number], where
    if (found := world.outcome()) != outcome:
        differs = {
            name: (found.get(name), outcome.get(name)) for name in outcome | found if found.get(name) != outcome.get(name)
        }
        raise Broken(f"{where}: ends with, instead of what an undisturbed history does: {differs}")


@_A_CHANGE
def test_a_process_that_is_killed_at_some_operations_of_a_change_leads_to_the_same_end(change: Change) -> None:
    seed = _today()
    for kill in _undisturbed(change, seed)[1][seed % _EVERY :: _EVERY]:
        _killed(change, kill, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, _today()], ids=["seed 0", "seed of today"])
@_A_CHANGE
def test_a_process_that_is_killed_at_any_operation_of_a_change_leads_to_the_same_end(change: Change, seed: int) -> None:
    for kill in _undisturbed(change, seed)[1]:
        _killed(change, kill, seed)


def test_each_kind_of_operation_is_in_a_change() -> None:
    seen = {each.what for change in CHANGES for each in _undisturbed(change, 0)[2]}
    assert {each for each in seen if " in sync, of " not in each} == {
        "asks for a lease", "writes an incarnation", "writes", "syncs", "replaces documents", "sorts", "begins an epoch",
        "is elected", "hands over", "links files", "says how far its clone is", "gives slots away", "finishes a clone",
        "puts a folder away",
    }  # fmt: skip
    assert {"has 4 in sync, of n1,n2,n3,n4", "has 3 in sync, of n1,n4,n3", "has 2 in sync, of n1,n2"} <= seen


@_A_CHANGE
@pytest.mark.parametrize("again_s", [0.0, 0.3, 1.0])  # later, a split is done: who asks again then asks for another one
def test_a_command_that_dies_at_any_operation_and_is_run_again_leads_to_the_same_end(change: Change, again_s: float) -> None:
    outcome, *_ = _undisturbed(change, 0)
    writes = 0
    while True:
        for how in _HOW_A_COMMAND_DIES:
            world = history(change, asker=Kill(writes, how), again_s=again_s)
            assert world.outcome() == outcome, (writes, how)
        if not world.asker_died:
            break
        writes += 1
    assert writes >= (3 if change.first else 1)


def _leave_early(state: ShardState, leader: Seat, level: Collection[Seat]) -> ShardState | None:
    return next_state(state, leader, [*level, *(Seat(node, "") for node in state.wanted or ())])


def _only_the_first_takes_a_ticket(steps: Moving, level: Collection[Seat]) -> list[Action]:
    seen, registrar = steps._registrar.seen, steps._registrar
    assert seen is not None
    if registrar.unanswered is not None or registrar.yielding:
        return []
    state = next_state(seen.state, steps._me, level)
    begins = state is not None and state.replicas != seen.state.replicas and bool(copied(seen.state))
    takes = seen.ticket if begins and seen.holds is None else None
    frees = seen.holds if (state or seen.state).wanted is None else None
    if takes is None and frees is None and state is None:
        return []
    return [Transact(registrar.propose(state or seen.state, seen.leader_revision, takes=takes, frees=frees))]


def _forget_those_before(state: ShardState, leader: Seat, level: Collection[Seat]) -> ShardState | None:
    found = next_state(state, leader, level)
    return found if found is None or found.wanted is None else replace(found, before=found.replicas)


_finish = Clone._finish


def _finish_before_it_is_linked(clone: Clone, key: ShardKey) -> None:
    clone.machine.disk.finish()
    _finish(clone, key)


@dataclass(frozen=True)
class Mistake:
    """`change`: in which it is found, by one of the kills."""

    what: str
    change: str
    owner: type | ModuleType
    method: str
    wrong: Any


MISTAKES = (
    Mistake("a replica leaves before the new one is in sync", "a follower moves", leading, "next_state", _leave_early),
    Mistake("a later leader takes no ticket", "2 replicas of 1", Moving, "next_step", _only_the_first_takes_a_ticket),
    Mistake("the replicas of before are forgotten", "2 replicas of 1", leading, "next_state", _forget_those_before),
    Mistake(
        "a member that is being added does not count", "2 replicas of 1", Registrar, "counting", lambda each: each.state.in_sync
    ),
    Mistake("a clone is finished before it has its files", "a split", Clone, "_finish", _finish_before_it_is_linked),
)


def _rarest_first(operations: Operations) -> list[Kill]:
    times = Counter(each.what for each in operations.seen)
    return sorted(operations.kills(), key=lambda kill: times[operations.seen[kill.number].what])


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_planted_mistake_is_found(mistake: Mistake) -> None:
    (change,) = [each for each in CHANGES if each.what == mistake.change]
    outcome, *_ = _undisturbed(change, 0)

    def is_found(kill: Kill | None) -> bool:
        try:
            return history(change, kill).outcome() != outcome
        except Broken:
            return True

    with mock.patch.object(mistake.owner, mistake.method, mistake.wrong):
        assert is_found(None) or any(map(is_found, _rarest_first(history(change).operations)))
