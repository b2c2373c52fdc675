"""A plan: which nodes are to keep each shard, and what that costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from eventstore_cluster.nodes.placing.fleet import Loads


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """What changes for one shard.

    Attributes:
        before: the nodes that keep the shard.
        wanted: the nodes that are to keep it.
        leader: to whom it is handed over; None: its leader stays.
        size: bytes that are copied.
        why: the reasons, for people.
    """

    shard: int
    before: tuple[str, ...]
    wanted: tuple[str, ...]
    leader: str | None
    size: int
    why: str

    @property
    def gained(self) -> list[str]:
        return [name for name in self.wanted if name not in self.before]

    @property
    def lost(self) -> list[str]:
        return [name for name in self.before if name not in self.wanted]


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """All changes of a plan.

    Attributes:
        nodes: of each node its name, replicas and leaders now, and replicas and leaders when the plan is done.
    """

    changes: tuple[PlacementChange, ...]
    nodes: tuple[tuple[str, int, int, int, int], ...]

    @property
    def size(self) -> int:
        return sum(change.size for change in self.changes)

    @property
    def pauses(self) -> int:
        return sum(change.leader is not None for change in self.changes)

    def seconds(self, bytes_a_second: float) -> float:
        """Returns how long the copies take at this rate, of all together."""
        return self.size / bytes_a_second

    def tree(self) -> dict[str, object]:
        """Returns it for JSON."""
        nodes = [
            dict(zip(("node", "replicas", "replicas_after", "leaders", "leaders_after"), each, strict=True))
            for each in self.nodes
        ]
        return {
            "changes": [asdict(each) for each in self.changes],
            "bytes": self.size,
            "hand_overs": self.pauses,
            "nodes": nodes,
        }


def plan_of(loads: Loads) -> PlacementPlan:
    """Returns what differs from the cluster as it is."""
    changes = []
    for number, shard in sorted(loads.fleet.shards.items()):
        wanted, leader = tuple(loads.replicas[number]), loads.leaders[number]
        if wanted != shard.replicas or leader != shard.leader:
            gained = sum(name not in shard.replicas for name in wanted)
            to = None if leader == shard.leader else leader
            reasons = loads.why.get(number, []) if wanted != shard.replicas else []
            led = [] if to is None or number not in loads.why_led else [loads.why_led[number]]
            why = "; ".join([*reasons, *led])
            changes.append(PlacementChange(number, shard.replicas, wanted, to, gained * shard.size, why))
    shards = loads.fleet.shards.values()
    replicas, leaders = Counter(n for each in shards for n in each.replicas), Counter(each.leader for each in shards)
    now_led, kept = loads.led(), Counter(name for names in loads.replicas.values() for name in names)
    names = sorted({*loads.fleet.nodes, *replicas})
    nodes = tuple((name, replicas[name], kept[name], leaders[name], now_led[name]) for name in names)
    return PlacementPlan(tuple(changes), nodes)
