"""Which replicas should move so that nodes are evenly loaded: as few bytes as possible, zones kept apart, then leaders.

First, replicas leave draining nodes. Then replicas that share a zone without need move. Then the fullest node gives to the
emptiest as long as that makes the two more even. Each step moves one replica, and makes the cluster strictly more even, so it
ends.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import counted
from eventstore_cluster.nodes.placing.fleet import Fleet, Loads, needed
from eventstore_cluster.nodes.placing.plan import PlacementPlan, plan_of
from eventstore_cluster.nodes.placing.reasons import emptiest, fuller

EVEN: Final = 0.05
"""Nodes whose loads differ by this part of the mean are even enough: to move more would cost more than it brings."""
_ROUNDING: Final = 1e-9
"""A replica that weighs as much as two nodes differ only swaps them; sums of the same weights differ by less than this."""


def rebalance(fleet: Fleet) -> PlacementPlan:
    """Returns what makes the nodes even. Shards of which something is wanted already are left alone.

    Raises:
        InvalidArgument: what has to leave a node can go nowhere.
    """
    loads = Loads(fleet)
    for name, node in fleet.nodes.items():
        if node.leaves:
            _empty(loads, name)
    _spread_zones(loads)
    _level(loads)
    _level_leaders(loads)
    return plan_of(loads)


def drain(fleet: Fleet, name: str) -> PlacementPlan:
    """Returns what takes all replicas off the node, which is given none.

    Raises:
        InvalidArgument: there is no such node, or one of its replicas can go nowhere, or is moving now.
    """
    fleet.node(name)
    loads = Loads(fleet)
    if busy := [fleet.shards[number] for number in sorted(loads.on[name]) if fleet.shards[number].busy]:
        raise InvalidArgument(f"shard {busy[0].number} of {name} {busy[0].why_busy}", field="node", value=name)
    _empty(loads, name)
    return plan_of(loads)


def resize(fleet: Fleet, count: int, shards: list[int] | None = None) -> PlacementPlan:
    """Returns the changes that give these shards, or all that are not busy, `count` replicas.

    Raises:
        InvalidArgument: there are too few nodes that may take one, fewer would be left than must be in sync, or one of these
            shards is busy.
    """
    loads = Loads(fleet)
    for number in sorted(fleet.shards) if shards is None else shards:
        if number not in fleet.shards:
            raise InvalidArgument(
                f"there is no shard {number}: `eventstore cluster status` shows those there are", field="shard", value=number
            )
        shard = fleet.shards[number]
        if count < shard.in_sync_min:
            raise InvalidArgument(
                f"shard {number} acknowledges what {shard.in_sync_min} replicas have, and would keep {count}; ask for "
                f"{shard.in_sync_min} at least",
                field="replicas",
                limit=shard.in_sync_min,
                value=count,
            )
        if shard.busy and shards is not None:
            raise InvalidArgument(f"shard {number} {shard.why_busy}", field="shard", value=number)
        if shard.busy:
            continue
        while len(loads.replicas[number]) < count:
            target = _target(loads, number, others := loads.replicas[number])
            loads.add(number, target, f"is to have {counted(count, 'replica')}, and {emptiest(loads, target, others)}")
        while len(loads.replicas[number]) > count:
            name = _least_needed(loads, number)
            loads.drop(number, name, f"is to have {counted(count, 'replica')}, and {_why_given_up(loads, number, name)}")
    return plan_of(loads)


def _empty(loads: Loads, name: str) -> None:
    """Moves all replicas off a node, the largest first: they are the hardest to place."""
    for number in sorted(loads.on[name], key=lambda each: (-loads.weights[each], each)):
        if not loads.fleet.shards[number].busy:
            others = [each for each in loads.replicas[number] if each != name]
            target = _target(loads, number, others)
            loads.move(number, name, target, f"{name} is drained, and {emptiest(loads, target, others)}")


def _target(loads: Loads, shard: int, others: list[str]) -> str:
    """Returns the node that is to get a replica beside `others`: the emptiest of the nodes that add a zone; if none adds one,
    the emptiest of all.
    """
    able = [name for name in loads.fleet.nodes if loads.may_take(shard, name)]
    if not able:
        raise InvalidArgument(
            f"no node can take another replica of shard {shard}: {_why_none(loads, shard)}. Start another node (it is known "
            "after seconds), or make room",
            field="node",
            value=shard,
        )
    return max(able, key=lambda name: (loads.zones([*others, name]), -loads.load[name], name))


def _why_none(loads: Loads, shard: int) -> str:
    """Says of each node why it may take no replica of the shard; nodes with the same reason are listed together."""
    found: dict[str, list[str]] = {}
    for name, node in loads.fleet.nodes.items():
        if name in loads.replicas[shard]:
            why = "one is on"
        elif not node.takes:
            why = "draining:" if node.leaves else "not running:"
        else:
            why = f"less than {needed(loads.fleet.shards[shard].size):,} bytes free:"
        found.setdefault(why, []).append(name)
    return "; ".join(f"{why} {', '.join(names)}" for why, names in found.items()) or "none is known"


def _least_needed(loads: Loads, shard: int) -> str:
    """Returns the replica to give up. The leader stays if there is another. A replica goes first if its node drains or does not
    run, then if it shares a zone, then if its node is the fullest.
    """
    names = [name for name in loads.replicas[shard] if name != loads.leaders[shard]] or loads.replicas[shard]
    able = {name for name, node in loads.fleet.nodes.items() if node.takes}
    zones = Counter(loads.zone(name) for name in loads.replicas[shard])
    return max(names, key=lambda name: (name not in able, zones[loads.zone(name)], loads.load[name], name))


def _why_given_up(loads: Loads, shard: int, name: str) -> str:
    """Says why `_least_needed` has chosen this replica."""
    node = loads.fleet.nodes[name]
    if not node.takes:
        return f"{name} {'is drained' if node.leaves else 'does not run'}"
    zone = loads.zone(name)
    if sharing := [other for other in loads.replicas[shard] if other != name and loads.zone(other) == zone]:
        return f"{', '.join(sharing)} in zone {zone} has it as well as {name}"
    return f"of those that do not lead it, {emptiest(loads, name)}"


def _spread_zones(loads: Loads) -> None:
    """Moves replicas that share a zone to zones that have none of their shard."""
    for number in sorted(loads.replicas):
        while not loads.fleet.shards[number].busy and _spread_one(loads, number):
            pass


def _spread_one(loads: Loads, shard: int) -> bool:
    names = loads.replicas[shard]
    zones = Counter(loads.zone(name) for name in names)
    sharing = [name for name in names if zones[loads.zone(name)] > 1]
    able = [name for name in loads.fleet.nodes if loads.zone(name) not in zones and loads.may_take(shard, name)]
    if not sharing or not able:
        return False
    source = max(sharing, key=lambda name: (name != loads.leaders[shard], loads.load[name], name))
    target = min(able, key=lambda name: (loads.load[name], name))
    why = f"zone {loads.zone(source)} has it {zones[loads.zone(source)]} times, zone {loads.zone(target)} has none of it"
    loads.move(shard, source, target, why)
    return True


def _level(loads: Loads) -> None:
    """Moves replicas from the fullest node to emptier ones, until no move makes them more even by much."""
    rest = {name for name, node in loads.fleet.nodes.items() if node.takes}
    tolerated = EVEN * sum(loads.load.values()) / max(len(rest), 1)
    while rest:
        fullest = max(rest, key=lambda name: (loads.load[name], name))
        if not _relieved(loads, fullest, rest, tolerated):
            rest.remove(fullest)  # nothing that it has can go anywhere emptier


def _relieved(loads: Loads, fullest: str, rest: set[str], tolerated: float) -> bool:
    for target in sorted(rest - {fullest}, key=lambda name: (loads.load[name], name)):
        gap = loads.load[fullest] - loads.load[target]
        if gap <= tolerated:
            return False
        lighter = [each for each in loads.on[fullest] if loads.weights[each] < gap - _ROUNDING]
        able = [each for each in lighter if _may_move(loads, each, fullest, target)]
        if able:
            chosen = min(able, key=lambda each: (abs(gap / 2 - loads.weights[each]), each))
            loads.move(chosen, fullest, target, fuller(loads, fullest, target))
            return True
    return False


def _may_move(loads: Loads, shard: int, source: str, target: str) -> bool:
    if loads.fleet.shards[shard].busy or not loads.may_take(shard, target):
        return False
    names = loads.replicas[shard]
    return loads.zones([*(name for name in names if name != source), target]) >= loads.zones(names)


def _level_leaders(loads: Loads) -> None:
    """Has nodes lead as many shards as others: leadership goes to a replica that there is, or will be; no bytes move."""
    led = loads.led()
    rest = set(led)
    while rest:
        busiest = max(rest, key=lambda name: (led[name], name))
        better = [
            (led[name], name, number)
            for number in sorted(loads.on.get(busiest, ()))
            if loads.leaders[number] == busiest and not loads.fleet.shards[number].busy
            for name in loads.replicas[number]
            if loads.fleet.nodes[name].takes and led[name] + 1 < led[busiest]
        ]
        if not better:
            rest.remove(busiest)
            continue
        _, name, number = min(better)
        loads.leaders[number] = name
        loads.why_led[number] = f"{busiest} leads {led[busiest]} of {led.total()}, {name} {led[name]}"
        led[busiest] -= 1
        led[name] += 1
        rest.add(name)
