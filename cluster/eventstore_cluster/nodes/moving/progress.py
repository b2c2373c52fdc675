"""The moves and splits that are under way, and how far each is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from eventstore.fields import counted
from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view
from eventstore_cluster.registry.node_keys import MOVING, read_moving, tickets
from eventstore_cluster.registry.pauses import is_paused_alone, pause_text
from eventstore_cluster.registry.preparing import preparing_of
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import LEADERS, UNSERVED, ShardKey, read_leader
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Pause, ShardState
from eventstore_cluster.status import SILENT_S, ShardRow


@dataclass(frozen=True, slots=True)
class Copy:
    """A replica that is being made.

    Attributes:
        lacks: bytes of the log that it does not have yet; None if the leader does not say.
        size: bytes of the log; None if the leader does not say.
    """

    node: str
    lacks: int | None
    size: int | None


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A shard of which something is wanted that is not done.

    Attributes:
        before: the nodes that kept replicas when it was asked for.
        wanted: the nodes that are to keep replicas.
        split: the new shards that are to get some of its slots.
        does: what is done, or waited for, now.
        by: who asked for it; empty if that is not known.
        paused: it was paused alone, not with all moves.
    """

    shard: int
    before: tuple[str, ...]
    wanted: tuple[str, ...]
    leader: str | None
    copies: tuple[Copy, ...]
    split: tuple[int, ...]
    does: str
    by: str = ""
    paused: bool = False

    def tree(self) -> dict[str, object]:
        return asdict(self)


def under_way(seen: RegistrySnapshot, rows: Mapping[int, ShardRow]) -> list[UnderWay]:
    """Returns the shards of which something is wanted that is not done. `rows`: what the shards say of themselves."""
    view = cluster_view(seen)
    if view is None:
        return []
    pause_all = read_moving(seen.value(MOVING)).pause
    wanted = {number: key for number, key in view.shards.items() if key.state.wanted or key.state.successor or key.state.split}
    found = [
        _now(_under_way(number, key, view, seen, row := rows.get(number)), key.state, seen, row, pause_all)
        for number, key in wanted.items()
    ]
    stuck = [replace(each, does=f"{each.does}; {why}") if (why := view.failing(each.shard)) else each for each in found]
    return [
        *stuck,
        *(
            _born(number, key, view)
            for number, key in view.shards.items()
            if number not in wanted and f"{UNSERVED}{number}" in seen.entries and number not in view.serving
        ),
    ]


def moved(seen: RegistrySnapshot) -> list[int]:
    """Returns the shards under way that `pause` is about: shards that move or are handed over, and are not being split."""
    view = cluster_view(seen)
    wanted = {} if view is None else {number: key.state for number, key in view.shards.items() if not key.state.split}
    return [number for number, state in wanted.items() if state.wanted or state.successor]


def _born(number: int, key: ShardKey, view: ClusterView) -> UnderWay:
    """Tells of a shard that was split off, and was never served."""
    assert key.lineage.birth is not None
    does = f"is split off shard {key.lineage.birth.parent}; {view.troubles()[number]}"
    return UnderWay(number, key.state.replicas, key.state.replicas, view.leaders.get(number), (), (), does)


def _now(found: UnderWay, state: ShardState, seen: RegistrySnapshot, row: ShardRow | None, pause_all: Pause) -> UnderWay:
    """Says what is not about replicas: that it is paused, and what a split waits for."""
    if (said := pause_text(found.shard, state, pause_all)) is not None:
        return replace(found, does=said, paused=is_paused_alone(state))
    if not state.split or state.successor is not None or found.leader is None:
        return found
    clones = [f"shard {each.shard} on {each.node} {each.text}" for each in preparing_of(seen) if each.shard in state.split]
    return replace(found, does=f"waits for clones: {'; '.join(clones)}{_unsorted(found.leader, row)}")


def _unsorted(leader: str, row: ShardRow | None) -> str:
    """Says how many files the leader has yet to sort, apart from the current one. Clones link sorted files only."""
    if row is None or row.event_files is None or row.sorted_files is None or row.sorted_files >= row.event_files - 1:
        return ""
    return f"; {leader} has sorted {row.sorted_files:,} of {counted(row.event_files, 'event file')}, and clones get sorted ones"


def _under_way(number: int, key: ShardKey, view: ClusterView, seen: RegistrySnapshot, row: ShardRow | None) -> UnderWay:
    state, leader = key.state, view.leaders.get(number)
    wanted, before = state.wanted or state.replicas, state.before or state.replicas
    in_sync = {member.node for member in state.in_sync}
    copies = tuple(_copy(name, row) for name in wanted if name not in before and name not in in_sync)
    does = _does(key, view, leader, in_sync, wanted, copies, row, may_copy=_may_copy(number, seen))
    by = state.by if state.wanted or state.split else state.leader_by
    return UnderWay(number, before, wanted, leader, copies, state.split, does, by)


def _may_copy(number: int, seen: RegistrySnapshot) -> bool:
    """Whether the leader of the shard has a ticket."""
    leader = read_leader(seen.entries.get(f"{LEADERS}{number}"))
    return leader is not None and leader.run in tickets(seen).values()


def _copy(name: str, row: ShardRow | None) -> Copy:
    behind = None if row is None or row.behind is None else row.behind.get(name)
    return Copy(name, None if behind is None else behind.bytes, None if row is None else row.log_bytes)


def _does(
    key: ShardKey,
    view: ClusterView,
    leader: str | None,
    in_sync: set[str],
    wanted: tuple[str, ...],
    copies: tuple[Copy, ...],
    row: ShardRow | None,
    *,
    may_copy: bool,
) -> str:
    if leader is None:
        return "waits for a leader"
    if any(name not in key.state.replicas for name in wanted):
        return "waits until fewer others copy"
    missing = [name for name in wanted if name not in in_sync]
    if away := [name for name in missing if name not in view.nodes]:
        return f"waits for node {', '.join(away)}, which does not run"
    if copies and not may_copy:
        return "waits until fewer others copy"
    if copies:
        return f"copies to {', '.join(each.node for each in copies)}"
    if missing:
        return f"waits until {', '.join(missing)} is in sync"
    target = key.state.successor or wanted[0]
    if leader == target:
        return "takes out what is left over"
    return f"hands over to {target}{_sorts_first(row, target)}"


def _sorts_first(row: ShardRow | None, target: str) -> str:
    """Says what is left for a hand-over to wait for if the target keeps up, and answers."""
    found = None if row is None or row.behind is None else row.behind.get(target)
    if found is None or found.silent_seconds is None or found.silent_seconds > SILENT_S:
        return ""
    limits = Limits()
    if found.seconds > limits.hand_over_lag_s:
        return ""
    return f", which sorts event files first, for {limits.hand_over_sort_s:g} s at most"
