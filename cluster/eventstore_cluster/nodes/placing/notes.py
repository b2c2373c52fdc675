"""What a person has to know of a plan besides its changes: what is not known, what it waits for, and what has no reserve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore_cluster.nodes.placing.fleet import Fleet
from eventstore_cluster.nodes.placing.plan import PlacementChange, PlacementPlan
from eventstore_cluster.replica.leading import least_in_sync

_NAMED_MAX: Final = 20


def notes(fleet: Fleet, plan: PlacementPlan) -> list[str]:
    """Returns a sentence, or more, for each of these cases that holds."""
    silent = [number for number, shard in sorted(fleet.shards.items()) if shard.silent]
    without_reserve = [change for change in plan.changes if _needs_all(fleet, change)]
    found = []
    if silent and plan.changes:
        found.append(
            f"{_shards(silent)} {_verb(silent, 'does', 'do')} not say how large {_verb(silent, 'it is', 'they are')}, and "
            f"{_verb(silent, 'counts', 'count')} as empty: whether nodes have space for {_verb(silent, 'it', 'them')} is not "
            "known. `eventstore cluster status` shows why; plan again when there is an answer."
        )
    if without_reserve:
        numbers = [change.shard for change in without_reserve]
        count = max(len(change.wanted) for change in without_reserve)
        found.append(
            f"{_shards(numbers)} then {_verb(numbers, 'needs', 'need')} all {count} replicas: while one of them is away, "
            f"appends are refused, whether it led or not. With {count + 1} replicas one may fail."
        )
    if unled := [change.shard for change in plan.changes if fleet.shards[change.shard].leader is None]:
        nodes = sorted({name for number in unled for name in fleet.shards[number].replicas})
        found.append(
            f"{_shards(unled)} {_verb(unled, 'has', 'have')} no leader to carry this out: it waits until one of "
            f"{', '.join(nodes)} leads. `eventstore cluster plans --watch` shows that, Ctrl-C only stops watching, and "
            "`cancel` takes it back."
        )
    return found


def _needs_all(fleet: Fleet, change: PlacementChange) -> bool:
    """Whether another number of replicas is wanted of the shard, of which none may be out of sync."""
    before, wanted = len(change.before), len(change.wanted)
    return before != wanted > 1 and least_in_sync(before, wanted, fleet.shards[change.shard].in_sync_min) >= wanted


def _shards(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED_MAX]))
    rest = len(numbers) - _NAMED_MAX
    return f"{_verb(numbers, 'Shard', 'Shards')} {named}{f' and {rest} more' if rest > 0 else ''}"


def _verb(numbers: Sequence[int], one: str, many: str) -> str:
    return one if len(numbers) == 1 else many
