"""Plans for the whole cluster: made from what the registry and leaders say, asked for shard by shard, watched, cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import shown
from eventstore_cluster.nodes.accepting_loss import check_format, shard_key
from eventstore_cluster.nodes.cluster_view import cluster_view, nodes_of
from eventstore_cluster.nodes.first_read import first_read_of_cluster, on_registry
from eventstore_cluster.nodes.moving.asking import Asked, ask, given_away, write_for_all, write_shard
from eventstore_cluster.nodes.moving.progress import UnderWay, moved, under_way
from eventstore_cluster.nodes.placing.fleet import Fleet
from eventstore_cluster.nodes.placing.plan import PlacementPlan
from eventstore_cluster.nodes.placing.survey import surveyed
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import DRAINING, MOVING, MovingKey, read_moving
from eventstore_cluster.registry.pauses import paused_alone
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.replica.registry_state import Pause
from eventstore_cluster.status import ShardRow, status_of

RATE_LEAST: Final = 1_000_000
"""Slower, a replica that is sent a piece of the log would take its leader for dead."""
RATE_MOST: Final = 1_000_000_000_000
"""No disk or network is faster: more is a slip of the pen."""
MOVES_MAX: Final = 1_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterSurvey:
    """A cluster at one revision."""

    seen: RegistrySnapshot
    fleet: Fleet
    limits: MovingKey


@dataclass(frozen=True, slots=True)
class Paused:
    """What `pause` has done.

    Attributes:
        paused: whether it paused or resumed.
        shards: the shards whose moves are paused now, or resumed.
        still_paused: the shards that stay paused when others are resumed, because each was paused alone, or all are.
    """

    paused: bool
    shards: tuple[int, ...]
    still_paused: tuple[int, ...]

    def text(self, shard: int | None) -> str:
        """Returns it in words. `shard`: what was asked for; None: all moves."""
        done = "paused" if self.paused else "resumed"
        if shard is not None:
            still = " The moves of all shards are paused: `eventstore cluster resume`." if self.still_paused else ""
            return f"Moves of shard {shard} are {done}.{still}"
        alone = ", ".join(f"`eventstore cluster resume {each}`" for each in self.still_paused)
        under_way = {0: "none is", 1: "1 is"}.get(len(self.shards), f"{len(self.shards)} are")
        return f"Moves of all shards are {done}; {under_way} under way." + (
            f" Still paused, each by itself: {alone}." if alone else ""
        )


def with_registry(etcd: EtcdOptions, cluster: str, do: Callable[[EtcdRegistry, RegistrySnapshot], Awaitable[T]]) -> T:
    """Calls `do` with the registry and its keys, in an event loop of its own; returns its result.

    Raises:
        EventStoreError: etcd has no such cluster.
        RegistryUnavailable, RegistryRefused, Corrupt
    """

    async def run(registry: EtcdRegistry) -> T:
        seen = await first_read_of_cluster(registry)
        check_format(seen)
        return await do(registry, seen)

    return on_registry(etcd, cluster, run)


def survey(etcd: EtcdOptions, cluster: str, interval_s: float, shard: int | None = None) -> ClusterSurvey:
    """Asks the registry, and the leaders, for figures over `interval_s`. `shard`: asks only the leaders of this shard and of
    the shards under way; None: all.

    Raises:
        EventStoreError: etcd has no such cluster.
        RegistryUnavailable, RegistryRefused, Corrupt
    """
    seen = with_registry(etcd, cluster, _as_seen)
    rows = figures(seen, interval_s, None if shard is None else {shard, *moved(seen)})
    return ClusterSurvey(seen, surveyed(seen, rows), read_moving(seen.value(MOVING)))


def figures(seen: RegistrySnapshot, interval_s: float, only: Container[int] | None = None) -> dict[int, ShardRow]:
    """Returns what each shard says of itself, or only these."""
    view = cluster_view(seen)
    return {} if view is None else {row.shard: row for row in status_of(view.map(), None, interval_s, only).shards}


def pending(etcd: EtcdOptions, cluster: str) -> list[UnderWay]:
    """Returns what is wanted of shards and is not done.

    Raises:
        EventStoreError: etcd has no such cluster.
        RegistryUnavailable, RegistryRefused, Corrupt
    """
    found = with_registry(etcd, cluster, _as_seen)
    moves = {each.shard for each in under_way(found, {})}
    return under_way(found, figures(found, 0.0, moves) if moves else {})


async def _as_seen(_: EtcdRegistry, seen: RegistrySnapshot) -> RegistrySnapshot:
    return seen


def carry_out(etcd: EtcdOptions, cluster: str, found: ClusterSurvey, plan: PlacementPlan) -> list[Asked]:
    """Writes what the plan wants of each shard; the shards' leaders carry it out.

    Raises:
        InvalidArgument: too few replicas would be left of a shard, or something else is wanted of it already.
        EventStoreError: a shard has changed since it was seen, or it is unknown what was written.
        RegistryUnavailable, RegistryRefused
    """
    return with_registry(etcd, cluster, lambda registry, _: ask_for_all(registry, found.seen, plan))


async def ask_for_all(registry: EtcdRegistry, seen: RegistrySnapshot, plan: PlacementPlan) -> list[Asked]:
    """Writes what the plan wants of each shard. If it fails, a part of the plan may be written, which is harmless: a later plan
    leaves that part alone.

    Raises:
        InvalidArgument: too few replicas would be left of a shard, or something else is wanted of it already.
        EventStoreError: a shard has changed since it was seen, or it is unknown what was written.
        RegistryUnavailable, RegistryRefused
    """
    asked: list[Asked] = []
    for change in plan.changes:
        with _naming(f"{len(asked)} of {len(plan.changes)} shards were asked for before" if asked else ""):
            asked.append(await ask(registry, seen, change.shard, change.wanted, change.leader))
    return asked


@contextmanager
def _naming(done: str) -> Iterator[None]:
    """Lets an error say what was done before it; nothing if that is empty."""
    try:
        yield
    except EventStoreError as error:
        raise type(error)(f"{error.message}{done and '; '}{done}") from None


def take_back(etcd: EtcdOptions, cluster: str, shard: int | None) -> list[int]:
    """Cancels the pending move or hand-over of a shard, or of all shards; the replicas stay on the nodes that had them. Returns
    the shards of which something was pending.

    Raises:
        InvalidArgument: there is no such shard, or nothing is pending for it, or nothing but a split.
        EventStoreError: a shard has changed meanwhile; names the shards whose moves were cancelled before.
    """
    return with_registry(etcd, cluster, lambda registry, seen: take_back_all(registry, seen, shard))


async def take_back_all(registry: EtcdRegistry, seen: RegistrySnapshot, shard: int | None) -> list[int]:
    """Same as `take_back`, on a snapshot of the registry.

    Raises:
        InvalidArgument: there is no such shard, or nothing is pending for it, or nothing but a split.
        EventStoreError: a shard has changed meanwhile; names the shards whose moves were cancelled before.
    """
    view = cluster_view(seen)
    assert view is not None
    taken, splits = list[int](), list[int]()
    for number in view.shards if shard is None else [shard]:
        found = shard_key(seen, number)
        state = found.state
        if state.wanted is None and state.successor is None:
            if state.split:
                splits.append(number)
            elif shard is not None:
                nothing = f"nothing to cancel for shard {shard}: no move of it is under way{given_away(state)}"
                raise InvalidArgument(nothing, field="shard", value=shard)
            continue
        wanted = None if state.wanted is None else state.before
        state = replace(state.asked_by(registry.by).to_be_led_by(None, registry.by), wanted=wanted)
        with _naming(f"of shard {', '.join(map(str, taken))} it was taken back before" if taken else ""):
            await write_shard(registry, seen, number, replace(found, state=state))
        taken.append(number)
    if splits and not taken:
        how = " and ".join(f"`eventstore cluster split {number} --call-off`" for number in splits)
        raise InvalidArgument(
            f"shard {', '.join(map(str, splits))} is being split, which {how} takes back", field="shard", value=splits[0]
        )
    return taken


def start_draining(etcd: EtcdOptions, cluster: str, node: str) -> None:
    """Notes that the node is to keep no replicas.

    Raises:
        EventStoreError: etcd has no such cluster.
        RegistryUnavailable, RegistryRefused, Corrupt
    """

    async def write(registry: EtcdRegistry, seen: RegistrySnapshot) -> None:
        if f"{DRAINING}{node}" not in seen.entries:
            await _write_draining(registry, seen, node, {}, {"draining": True})

    with_registry(etcd, cluster, write)


def end_draining(etcd: EtcdOptions, cluster: str, node: str) -> None:
    """Has the node get replicas again. Raises InvalidArgument: it is not draining."""

    async def write(registry: EtcdRegistry, seen: RegistrySnapshot) -> None:
        if f"{DRAINING}{node}" not in seen.entries:
            raise InvalidArgument(f"node {shown(node)} is not draining", field="node", value=node)
        await _write_draining(registry, seen, node, None, {"draining": False})

    with_registry(etcd, cluster, write)


def remove(etcd: EtcdOptions, cluster: str, node: str) -> None:
    """Forgets a node that keeps no replicas and does not run.

    Raises:
        InvalidArgument: it keeps some, or runs, or is not known.
    """

    async def write(registry: EtcdRegistry, seen: RegistrySnapshot) -> None:
        fleet = surveyed(seen, {})
        fleet.node(node)
        kept = [
            str(number)
            for number, shard in fleet.shards.items()
            if node in shard.replicas or node in shard_key(seen, number).state.replicas
        ]
        if kept:
            what = f"a replica of shard {kept[0]}" if len(kept) == 1 else f"replicas of shards {', '.join(kept)}"
            raise InvalidArgument(
                f"node {node} keeps {what}: `eventstore cluster drain {node}` moves {'it' if len(kept) == 1 else 'them'} away",
                field="node",
                value=node,
            )
        if node in nodes_of(seen):
            raise InvalidArgument(f"node {node} keeps no replicas, but runs: stop it first", field="node", value=node)
        await _write_draining(registry, seen, node, None, {"removed": True})

    with_registry(etcd, cluster, write)


async def _write_draining(registry: EtcdRegistry, seen: RegistrySnapshot, node: str, value: Tree | None, details: Tree) -> None:
    key = f"{DRAINING}{node}"
    what = f"whether node {node} is draining has"
    await write_for_all(registry, seen, {"node": node, **details}, {key: value}, {key: seen.revision_of(key)}, what)


def limit_moves(etcd: EtcdOptions, cluster: str, at_once: int | None, rate: int | None, *, unlimited: bool) -> MovingKey:
    """Sets how many shards may copy replicas at once, and at how many bytes a second each; returns what holds then.

    Raises:
        InvalidArgument: a number is out of range.
    """
    if at_once is not None and not 1 <= at_once <= MOVES_MAX:
        raise InvalidArgument(f"{at_once} moves at once, allowed are 1 to {MOVES_MAX}", field="moves", value=at_once)
    if rate is not None and not RATE_LEAST <= rate <= RATE_MOST:
        raise InvalidArgument(
            f"a rate of {rate:,} bytes/s, allowed are {RATE_LEAST:,} to {RATE_MOST:,}, or none for no limit; "
            "`eventstore cluster pause` stops copies",
            field="max-rate",
            value=rate,
            limit=RATE_LEAST if rate < RATE_LEAST else RATE_MOST,
        )

    async def write(registry: EtcdRegistry, seen: RegistrySnapshot) -> MovingKey:
        limits = read_moving(seen.value(MOVING))
        limits = replace(limits, at_once=at_once or limits.at_once, rate=None if unlimited else rate or limits.rate)
        if (at_once, rate, unlimited) != (None, None, False):
            await _write_limits(registry, seen, limits, {"moves_at_once": limits.at_once, "move_rate": limits.rate or "none"})
        return limits

    return with_registry(etcd, cluster, write)


def pause(etcd: EtcdOptions, cluster: str, paused: bool, shard: int | None = None) -> Paused:
    """Pauses or resumes the moves of all shards: leaders stop what they do about wanted replicas, copying too. Splits continue.
    With `shard`, only the leader of this shard stops, and it does not split the shard either. Later leaders do the same.

    Raises:
        InvalidArgument: there is no such shard, or nothing that takes time is wanted of it.
        EventStoreError: it has changed meanwhile.
    """

    async def write(registry: EtcdRegistry, seen: RegistrySnapshot) -> Paused:
        limits, now = read_moving(seen.value(MOVING)), Pause(paused, registry.by)
        if shard is None:
            await _write_limits(registry, seen, replace(limits, pause=now), {"moves_paused": paused})
            still = () if paused else tuple(paused_alone(seen))
            return Paused(paused, tuple(each for each in moved(seen) if each not in still), still)
        found = shard_key(seen, shard)
        if found.state.wanted is None and not found.state.split:
            nothing = f"no move or split of shard {shard} is under way{given_away(found.state)}"
            raise InvalidArgument(nothing, field="shard", value=shard)
        if found.state.pause.on != paused:
            await write_shard(registry, seen, shard, replace(found, state=replace(found.state, pause=now)))
        stays = not paused and limits.pause.on and found.state.wanted is not None
        return Paused(paused, () if stays else (shard,), (shard,) if stays else ())

    return with_registry(etcd, cluster, write)


async def _write_limits(registry: EtcdRegistry, seen: RegistrySnapshot, limits: MovingKey, details: Tree) -> None:
    """Raises EventStoreError: they were changed since they were seen."""
    compared = {MOVING: seen.revision_of(MOVING)}
    await write_for_all(registry, seen, details, {MOVING: limits.value()}, compared, "the limits of moves have")
