"""A cluster as placement sees it: nodes with zones and space, shards with bytes, rates and replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from eventstore.errors import InvalidArgument
from eventstore.fields import shown


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node as placement sees it.

    Attributes:
        zone: what fails together with it.
        free_bytes: without what replicas will take that are copied to it now; None: not known.
        takes: it may be given replicas: it runs, and is not draining.
        leaves: it is draining: what it keeps has to leave it.
    """

    name: str
    zone: str = ""
    free_bytes: int | None = None
    takes: bool = True
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A shard as placement sees it.

    Attributes:
        replicas: the nodes that keep it, or are to keep it if it moves, in the order in which they should lead.
        size: bytes of its log.
        rate: events appended a second.
        busy: why its replicas are left alone; None if they are not.
        splits: it is left alone because it is being split.
        silent: it does not say its size and rate, and counts as empty.
        paused: a text that its move or split is paused, and which command resumes it; None if it is not.
    """

    number: int
    replicas: tuple[str, ...]
    leader: str | None = None
    size: int = 0
    rate: float = 0.0
    in_sync_min: int = 1
    busy: str | None = None
    splits: bool = False
    silent: bool = False
    paused: str | None = None

    @property
    def why_busy(self) -> str:
        """What it is busy with, and which command ends that."""
        back = f"split {self.number} --call-off" if self.splits else f"cancel {self.number}"
        return f"{self.busy}: {self.paused or 'wait'}, or `eventstore cluster {back}`"


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: Mapping[str, PlacedNode]
    shards: Mapping[int, PlacedShard]

    def node(self, name: str) -> PlacedNode:
        """Raises InvalidArgument: there is no such node."""
        if name not in self.nodes:
            known = ", ".join(sorted(self.nodes)) or "none"
            raise InvalidArgument(f"there is no node {shown(name)}; these are: {known}", field="node", value=name, limit=known)
        return self.nodes[name]


class Loads:
    """What each node has to do, as it changes while a plan is made. A replica's weight is the mean of its shares of bytes, of
    all appends and of all replicas, so that none of them alone decides, and an empty cluster is spread by number.

    Attributes:
        why: of each shard, why its replicas change, in order.
        why_led: of each shard, why another node is to lead it.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.why: dict[int, list[str]] = {}
        self.why_led: dict[int, str] = {}
        self.replicas = {number: list(shard.replicas) for number, shard in fleet.shards.items()}
        self.leaders = {number: shard.leader for number, shard in fleet.shards.items()}
        sizes = sum(each.size * len(each.replicas) for each in fleet.shards.values())
        rates = sum(each.rate * len(each.replicas) for each in fleet.shards.values())
        count = sum(len(each.replicas) for each in fleet.shards.values())
        self.everything = float(sizes), rates, float(count)
        """Bytes, events appended a second and number of all replicas."""
        self.weights = {number: self._weight(each, sizes, rates, count) for number, each in fleet.shards.items()}
        self.free = {name: node.free_bytes for name, node in fleet.nodes.items()}
        self.load = dict.fromkeys(fleet.nodes, 0.0)
        self.on: dict[str, set[int]] = {name: set() for name in fleet.nodes}
        for number, names in self.replicas.items():
            for name in names:
                self.load[name] = self.load.get(name, 0.0) + self.weights[number]
                self.on.setdefault(name, set()).add(number)

    @staticmethod
    def _weight(shard: PlacedShard, sizes: int, rates: float, count: int) -> float:
        shares = [1 / count] if count else []
        shares += [shard.size / sizes] if sizes else []
        shares += [shard.rate / rates] if rates else []
        return sum(shares) / max(len(shares), 1)

    def amounts(self, name: str) -> tuple[float, float, float]:
        """Returns what a node has now: bytes, events appended a second, and replicas."""
        shards = [self.fleet.shards[number] for number in self.on.get(name, ())]
        return float(sum(each.size for each in shards)), sum(each.rate for each in shards), float(len(shards))

    def zone(self, name: str) -> str:
        node = self.fleet.nodes.get(name)
        return name if node is None else node.zone or name  # a node without a zone is one of its own

    def zones(self, names: list[str]) -> int:
        return len({self.zone(name) for name in names})

    def may_take(self, shard: int, name: str) -> bool:
        """Whether the node has no replica of the shard, may get one, and has space for it."""
        node, free = self.fleet.nodes[name], self.free[name]
        return (
            node.takes and name not in self.replicas[shard] and (free is None or free >= needed(self.fleet.shards[shard].size))
        )

    def add(self, shard: int, name: str, why: str, at: int | None = None) -> None:
        self.why.setdefault(shard, []).append(why)
        names = self.replicas[shard]
        names.insert(len(names) if at is None else at, name)
        self.load[name] += self.weights[shard]
        self.on[name].add(shard)
        if self.free[name] is not None:
            self.free[name] = (self.free[name] or 0) - self.fleet.shards[shard].size

    def drop(self, shard: int, name: str, why: str | None = None) -> int:
        """Returns where in the order the node was."""
        self.why.setdefault(shard, []).extend([] if why is None else [why])
        at = self.replicas[shard].index(name)
        self.replicas[shard].remove(name)
        self.load[name] -= self.weights[shard]
        self.on[name].discard(shard)
        return at

    def move(self, shard: int, source: str, target: str, why: str) -> None:
        """Puts the target in the place of the source; if that leads, the target is to."""
        self.add(shard, target, why, self.drop(shard, source))
        if self.leaders[shard] == source:
            self.leaders[shard] = target

    def led(self) -> Counter[str]:
        return Counter(leader for leader in self.leaders.values() if leader is not None)


def needed(size: int) -> int:
    """Returns the free bytes that a node needs to be given a replica: a tenth more than it has, for what comes meanwhile."""
    return size + size // 10
