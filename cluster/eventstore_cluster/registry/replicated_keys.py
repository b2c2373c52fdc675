"""The keys of a cluster with replicas, and their values as JSON.

cluster       uuid, format, layout; replicas and in_sync_min of new shards
shard/N       slots, store and `ShardState` of a shard; changed by its replicas, comparing its revision
leader/N      leased by the process that was elected: member, run, where the other replicas reach it, and since when it leads
left/N        epoch, node and reason of a leader that ended and could still say why; a killed node says nothing
serving/N     leased by the same process once it takes appends: where clients reach it, and its epoch
node/NAME     leased by a node: where clients ask it for the map
replica/N/NAME  leased by the process of a replica: its incarnations, and how its logs ended when it started
offer/NAME, offer/NAME/N  leased by a node whose cluster is not there: what `cluster` and `shard/N` were (`kept_keys`)
creating      who writes the shards of a cluster that is being created
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

from eventstore import __version__
from eventstore.chunks.documents import Member as Value
from eventstore.chunks.documents import Tree
from eventstore.errors import Corrupt, UnsupportedVersion
from eventstore.records.cluster_map import SlotRange, read_slots
from eventstore_cluster.registry.registry import Entry, Snapshot
from eventstore_cluster.replica.places import Ends, Reach
from eventstore_cluster.replica.registry_state import Leader, Member, Seen, ShardState

CLUSTER: Final = "cluster"
SHARDS: Final = "shard/"
LEADERS: Final = "leader/"
LEFT: Final = "left/"
SERVING: Final = "serving/"
NODES: Final = "node/"
REPLICAS: Final = "replica/"
FORMAT: Final = 1
"""Of these keys and of what replicas say to each other. A change that an older program would misread takes the next number."""
NEW: Final = "new"
"""The incarnation of a replica that has never been started: it is empty, so it is in sync with a new shard."""
EARLIER_MAX: Final = 64
"""Of the incarnations that a replica names: so many starts may follow the last one that the registry was told of."""
_REASON_CHARACTERS_MAX: Final = 200
_SINCE_END: Final = 253_402_300_800  # the year 10000, which no datetime holds


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """`layout`: grows when slots change hands. `replicas`, `in_sync_min`: of shards that are made."""

    uuid: uuid.UUID
    layout: int
    replicas: int
    in_sync_min: int

    def value(self) -> Tree:
        return {
            "uuid": self.uuid.hex, "format": FORMAT, "layout": self.layout, "replicas": self.replicas,
            "in_sync_min": self.in_sync_min,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShardKey:
    """`store`: uuid of its log."""

    store: uuid.UUID
    slots: tuple[SlotRange, ...]
    state: ShardState

    def value(self) -> Tree:
        state = self.state
        members: list[Value] = [_flat(each) for each in sorted(state.in_sync)]
        return {
            "store": self.store.hex, "slots": [list(pair) for pair in self.slots], "epoch": state.epoch, "in_sync": members,
            "replicas": list(state.replicas), "in_sync_min": state.in_sync_min, "generation": state.generation,
            "leader": None if state.leader is None else _flat(state.leader), "nonce": state.nonce,
            "successor": state.successor,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServingKey:
    """`address`: HOST:PORT for clients."""

    address: str
    epoch: int

    def value(self) -> Tree:
        return {"address": self.address, "epoch": self.epoch}


@dataclass(frozen=True, slots=True)
class NodeKey:
    """`address`: HOST:PORT where it has the map; `run`: of its process; `version`: of its program."""

    address: str
    run: str
    version: str

    def value(self) -> Tree:
        return {"address": self.address, "run": self.run, "version": self.version}


def read_cluster(value: Tree) -> ClusterKey:
    """Reads the key of a cluster.

    Raises:
        UnsupportedVersion: it has a format that this program does not know.
        Corrupt: something else wrote the key.
    """
    try:
        found: Any = value
        written = int(found.get("format", 1))
        if not 1 <= written <= FORMAT:
            raise UnsupportedVersion(
                f"the cluster has format {written}, and this program ({__version__}) knows 1 to {FORMAT}: use the program that "
                "the other nodes have",
                limit=FORMAT,
                value=written,
            )
        return ClusterKey(
            uuid.UUID(str(found["uuid"])), int(found["layout"]), int(found["replicas"]), int(found["in_sync_min"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(CLUSTER, 0, f"not a cluster in the registry ({error!r})") from None


def read_node(name: str, value: Tree) -> NodeKey:
    """Raises Corrupt: something else wrote the key."""
    try:
        return NodeKey(str(value["address"]), str(value["run"]), str(value["version"]))
    except KeyError as error:
        raise Corrupt(f"{NODES}{name}", 0, f"not a node in the registry ({error!r})") from None


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """`epoch`: the largest in the logs. `ends`: of each kind, when the process started; `reach`: with the last epoch of each,
    empty if an older program wrote the key. `led`: the last epoch of the documents was led from this folder. `earlier`: the
    incarnations of the folder before, the last ones.
    """

    incarnation: str
    run: str
    epoch: int
    ends: Ends
    reach: Reach = ()
    led: bool = False
    earlier: tuple[str, ...] = ()

    def value(self) -> Tree:
        ends: list[Value] = [list(end) for end in self.ends]
        reach: list[Value] = [list(each) for each in self.reach]
        return {
            "incarnation": self.incarnation, "run": self.run, "epoch": self.epoch, "ends": ends, "reach": reach,
            "led": self.led, "earlier": list(self.earlier),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeftKey:
    """Why the leader of this epoch leads no more. `node`: its node; empty if it is not known. Nothing is decided by it."""

    epoch: int
    node: str
    reason: str

    def value(self) -> Tree:
        return {"epoch": self.epoch, "node": self.node, "reason": self.reason[:_REASON_CHARACTERS_MAX]}


def leader_value(leader: Leader, since: int | None = None) -> Tree:
    """`since`: when it was elected, in seconds of Unix time by its own clock, for people."""
    return {**_named(leader.member), "run": leader.run, "address": leader.address, "since": since}


def read_shard(number: int, value: Tree) -> ShardKey:
    """Raises Corrupt: something else wrote the key."""
    try:
        found: Any = value
        state = ShardState(
            int(found["epoch"]), frozenset(Member(*map(str, each)) for each in found["in_sync"]),
            tuple(map(str, found["replicas"])), int(found["in_sync_min"]),
            None if found["leader"] is None else Member(*map(str, found["leader"])), int(found["generation"]),
            str(found["nonce"]), found.get("successor"),
        )  # fmt: skip
        return ShardKey(uuid.UUID(str(found["store"])), read_slots(found["slots"]), state)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{SHARDS}{number}", 0, f"not a shard in the registry ({error!r})") from None


def read_leader(entry: Entry | None) -> Leader | None:
    if entry is None:
        return None
    value = entry.value
    member = Member(str(value.get("node")), str(value.get("incarnation")))
    return Leader(member, str(value.get("run")), str(value.get("address")))


def read_since(entry: Entry | None) -> int | None:
    """Returns since when there is this leader; None if there is none, or an older program wrote it."""
    since = None if entry is None else entry.value.get("since")
    return since if isinstance(since, int) and 0 <= since < _SINCE_END else None


def read_left(value: Tree | None) -> LeftKey | None:
    match value:
        case {"epoch": int(epoch), "node": str(node), "reason": str(reason)}:
            return LeftKey(epoch, node, reason)
    return None


def read_replica(value: Tree | None) -> ReplicaKey | None:
    reach: Any
    earlier: Any
    match value:
        case {"incarnation": str(incarnation), "run": str(run), "epoch": int(epoch), "ends": list(ends), **rest}:
            found: Any = ends
            reach, earlier = rest.get("reach", []), rest.get("earlier", [])
            return ReplicaKey(
                incarnation, run, epoch, tuple((int(chunk), int(offset)) for chunk, offset in found),
                tuple((int(last), int(chunk), int(offset)) for last, chunk, offset in reach), rest.get("led") is True,
                tuple(map(str, earlier)),
            )  # fmt: skip
    return None


def read_serving(value: Tree | None) -> ServingKey | None:
    if value is None or not isinstance(epoch := value.get("epoch"), int):
        return None
    return ServingKey(str(value.get("address")), epoch)


def seen_of(number: int, snapshot: Snapshot) -> Seen | None:
    """Returns what a replica of the shard sees at this revision; None if there is no such shard.

    Raises:
        Corrupt
    """
    entry, leader = snapshot.entries.get(f"{SHARDS}{number}"), snapshot.entries.get(f"{LEADERS}{number}")
    if entry is None:
        return None
    state = read_shard(number, entry.value).state
    led = 0 if leader is None else leader.revision
    running = frozenset(Member(name, key.incarnation) for name, key in running_replicas(number, snapshot).items())
    return Seen(snapshot.revision, state, entry.revision, read_leader(leader), led, running)


def running_replicas(number: int, snapshot: Snapshot) -> dict[str, ReplicaKey]:
    """Returns the replicas of the shard whose processes run, by node."""
    prefix = f"{REPLICAS}{number}/"
    found = {
        name.removeprefix(prefix): read_replica(each.value)
        for name, each in snapshot.entries.items()
        if name.startswith(prefix)
    }
    return {name: key for name, key in found.items() if key is not None}


def _flat(member: Member) -> list[Value]:
    return [member.node, member.incarnation]


def _named(member: Member) -> Tree:
    return {"node": member.node, "incarnation": member.incarnation}
