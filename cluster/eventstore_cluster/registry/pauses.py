"""The pauses of moves, of all or of single shards: by whom, and how they are resumed."""

from __future__ import annotations

from collections.abc import Mapping

from eventstore_cluster.registry.node_keys import MOVING, read_moving
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import SHARDS, read_shard
from eventstore_cluster.replica.registry_state import Pause, ShardState


def is_paused_alone(state: ShardState) -> bool:
    """Whether a move or split of this shard is under way, and was paused itself."""
    return state.pause.on and (state.wanted is not None or bool(state.split))


def pause_text(number: int, state: ShardState, pause_all: Pause) -> str | None:
    """Returns a text that the move or split of a shard is paused, by whom, and how to resume it; None if it is not paused."""
    alone = _text(state.pause, f" {number}") if is_paused_alone(state) else None
    with_all = _text(pause_all) if pause_all.on and state.wanted is not None else None
    return "; all moves are ".join(filter(None, (alone, with_all))) or None


def pauses_of(seen: RegistrySnapshot) -> list[str]:
    """Returns all that is paused. Raises Corrupt."""
    pause_all = read_moving(seen.value(MOVING)).pause
    alone = [f"moves of shard {number} are {_text(pause, f' {number}')}" for number, pause in paused_alone(seen).items()]
    return [f"all moves are {_text(pause_all)}", *alone] if pause_all.on else alone


def paused_alone(seen: RegistrySnapshot) -> Mapping[int, Pause]:
    """Returns the pauses of the shards that were paused one by one, by their numbers in order. Raises Corrupt."""
    numbers = sorted(int(key.removeprefix(SHARDS)) for key in seen.entries if key.startswith(SHARDS))
    states = {number: read_shard(number, seen.entries[f"{SHARDS}{number}"].value).state for number in numbers}
    return {number: state.pause for number, state in states.items() if is_paused_alone(state)}


def _text(pause: Pause, shard: str = "") -> str:
    by = f" by {pause.by}" if pause.by else ""
    return f"paused{by}: `eventstore cluster resume{shard}` continues"
