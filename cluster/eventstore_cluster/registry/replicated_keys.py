"""The keys of a cluster with replicas, and their values as JSON.

cluster       uuid, format, layout; replicas and in_sync_min of new shards
shard/N       slots, store, `Lineage` and `ShardState` of a shard; changed by its replicas, comparing its revision. One without
              slots is in preparation: no map names it
leader/N      leased by the process that was elected: member, run, where the other replicas reach it, and since when it leads
left/N        epoch, node and reason of a leader that ended and could still say why; a killed node says nothing
serving/N     leased by the same process once it takes appends: where clients reach it, and its epoch
unserved/N    a shard that was split off, until the first of its leaders takes appends
node/NAME     leased by a node: where clients ask it for the map
replica/N/NAME  leased by the process of a replica: its incarnations, and how its logs ended when it started; of a shard in
                preparation, how many files it has
offer/NAME, offer/NAME/N  leased by a node whose cluster is not there: what `cluster` and `shard/N` were (`kept_keys`)
draining/NAME a node that is to keep no replicas: `nodes/placing` gives it none
moving        how many shards may copy replicas at once, and how many bytes a second each (`MovingKey`)
requests      the latest about all of the cluster, or a node, for the audit trail (`cluster_requests`)
moving/N      leased by the leader of a shard that copies replicas: one of as many tickets as may move at once
creating      who writes the shards of a cluster that is being created
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from eventstore import __version__
from eventstore.chunks.documents import DocumentValue as Value
from eventstore.chunks.documents import Tree, unknown_members
from eventstore.errors import Corrupt, UnsupportedVersion
from eventstore.records.cluster_map import SlotRange, read_slots
from eventstore.store.data_folder import FIRST_FORMAT, ShardIdentity
from eventstore_cluster.registry.cluster_requests import REQUESTS, read_requests
from eventstore_cluster.registry.lineage import LINEAGE_MEMBERS, NO_LINEAGE, Lineage, read_lineage, slots_value
from eventstore_cluster.registry.node_keys import MOVING, read_asked_by, read_moving, tickets
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import running_replicas
from eventstore_cluster.replica.registry_state import NOT_PAUSED, Clone, Leader, Pause, Seat, Seen, ShardState

CLUSTER: Final = "cluster"
SHARDS: Final = "shard/"
LEADERS: Final = "leader/"
LEFT: Final = "left/"
SERVING: Final = "serving/"
UNSERVED: Final = "unserved/"
FORMAT: Final = 2
"""Of these keys, of what replicas say to each other, and of the files of a store (`store.data_folder.FORMAT`). A change that an
older program would misread takes the next number. A cluster has the number that is in its key, and the newest one when it is
created; `nodes.upgrading` raises it once every node knows a newer one.
"""
NEW: Final = "new"
"""The incarnation of a replica that has never been started: it is empty, so it is in sync with a new shard."""
_CLUSTER_MEMBERS: Final = frozenset({"uuid", "format", "layout", "replicas", "in_sync_min", "next_shard"})
_SHARD_MEMBERS: Final = LINEAGE_MEMBERS | {
    "store",
    "slots",
    "epoch",
    "in_sync",
    "replicas",
    "in_sync_min",
    "generation",
    "leader",
    "nonce",
    "successor",
    "wanted",
    "before",
    "split",
    "split_times",
    "history",
    "by",
    "leader_by",
    "pause",
}
_REASON_CHARACTERS_MAX: Final = 200
_SINCE_END: Final = 253_402_300_800  # the year 10000, which no datetime holds


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """The cluster.

    Attributes:
        layout: grows when slots change hands.
        replicas: how many each new shard gets.
        in_sync_min: of new shards.
        next_shard: no shard had this number or a larger one; 0: nothing was split yet.
        format: of the cluster; see `FORMAT`.
        unknown: members that a newer program has written.
    """

    uuid: uuid.UUID
    layout: int
    replicas: int
    in_sync_min: int
    next_shard: int = 0
    unknown: Tree = field(default_factory=dict)
    format: int = FORMAT

    def value(self) -> Tree:
        return {
            **self.unknown,
            "uuid": self.uuid.hex,
            "format": self.format,
            "layout": self.layout,
            "replicas": self.replicas,
            "in_sync_min": self.in_sync_min,
            "next_shard": self.next_shard,
        }


@dataclass(frozen=True, slots=True)
class ShardKey:
    """A shard.

    Attributes:
        store: uuid of its log.
        unknown: members that a newer program has written.
    """

    store: uuid.UUID
    slots: tuple[SlotRange, ...]
    state: ShardState
    lineage: Lineage = NO_LINEAGE
    unknown: Tree = field(default_factory=dict)

    def identity(self, cluster: uuid.UUID, number: int, format_: int = FIRST_FORMAT) -> ShardIdentity:
        """Returns what a folder of the shard must say of itself. `format_`: of the cluster, as far as it is known."""
        own = self.lineage
        return ShardIdentity(cluster, number, self.slots, self.store, own.splits, own.ancestors, own.broker, format_)

    def value(self) -> Tree:
        state = self.state
        members: list[Value] = [_flat(each) for each in sorted(state.in_sync)]
        return {
            **self.unknown,
            "store": self.store.hex,
            "slots": slots_value(self.slots),
            "epoch": state.epoch,
            "in_sync": members,
            "replicas": list(state.replicas),
            "in_sync_min": state.in_sync_min,
            "generation": state.generation,
            "leader": None if state.leader is None else _flat(state.leader),
            "nonce": state.nonce,
            "successor": state.successor,
            "wanted": _listed(state.wanted),
            "before": _listed(state.before),
            "split": list(state.split),
            "split_times": state.splits,
            "history": list(state.history),
            **_asked_value(state),
            **self.lineage.value(),
        }


@dataclass(frozen=True, slots=True)
class ServingKey:
    """The process that takes appends of a shard.

    Attributes:
        address: HOST:PORT for clients.
    """

    address: str
    epoch: int

    def value(self) -> Tree:
        return {"address": self.address, "epoch": self.epoch}


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
            uuid.UUID(str(found["uuid"])),
            int(found["layout"]),
            int(found["replicas"]),
            int(found["in_sync_min"]),
            int(found.get("next_shard", 0)),
            unknown_members(value, _CLUSTER_MEMBERS),
            written,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(CLUSTER, 0, f"not a cluster in the registry ({error!r})") from None


@dataclass(frozen=True, slots=True)
class LeftKey:
    """Why the leader of this epoch leads no more. Nothing is decided by it.

    Attributes:
        node: its node; empty if it is not known.
    """

    epoch: int
    node: str
    reason: str

    def value(self) -> Tree:
        return {"epoch": self.epoch, "node": self.node, "reason": self.reason[:_REASON_CHARACTERS_MAX]}


def leader_value(leader: Leader, since: int | None = None) -> Tree:
    """Returns the value of the leader's key. `since`: when it was elected, in seconds of Unix time by its own clock, for
    people.
    """
    return {**_named(leader.member), "run": leader.run, "address": leader.address, "since": since}


def read_shard(number: int, value: Tree) -> ShardKey:
    """Raises Corrupt: something else wrote the key."""
    try:
        found: Any = value
        state = ShardState(
            int(found["epoch"]),
            frozenset(Seat(*map(str, each)) for each in found["in_sync"]),
            tuple(map(str, found["replicas"])),
            int(found["in_sync_min"]),
            None if found["leader"] is None else Seat(*map(str, found["leader"])),
            int(found["generation"]),
            str(found["nonce"]),
            found.get("successor"),
            _names(found.get("wanted")),
            _names(found.get("before")),
            tuple(map(int, found.get("split", ()))),
            int(found.get("split_times", 0)),
            _names(found.get("history")) or (),
            read_asked_by(found.get("by")),
            read_asked_by(found.get("leader_by")),
            _read_pause(found.get("pause")),
        )
        unknown = unknown_members(value, _SHARD_MEMBERS)
        return ShardKey(uuid.UUID(str(found["store"])), read_slots(found["slots"]), state, read_lineage(found), unknown)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{SHARDS}{number}", 0, f"not a shard in the registry ({error!r})") from None


def read_leader(entry: RegistryEntry | None) -> Leader | None:
    if entry is None:
        return None
    value = entry.value
    member = Seat(str(value.get("node")), str(value.get("incarnation")))
    return Leader(member, str(value.get("run")), str(value.get("address")))


def read_since(entry: RegistryEntry | None) -> int | None:
    """Returns since when the leader leads; None if there is none, or an older program wrote the key."""
    since = None if entry is None else entry.value.get("since")
    return since if isinstance(since, int) and 0 <= since < _SINCE_END else None


def read_left(value: Tree | None) -> LeftKey | None:
    match value:
        case {"epoch": int(epoch), "node": str(node), "reason": str(reason)}:
            return LeftKey(epoch, node, reason)
    return None


def read_serving(value: Tree | None) -> ServingKey | None:
    if value is None or not isinstance(epoch := value.get("epoch"), int):
        return None
    return ServingKey(str(value.get("address")), epoch)


def seen_of(number: int, snapshot: RegistrySnapshot) -> Seen | None:
    """Returns what a replica of the shard sees at this revision; None if there is no such shard.

    Raises:
        Corrupt
    """
    entry, leader = snapshot.entries.get(f"{SHARDS}{number}"), snapshot.entries.get(f"{LEADERS}{number}")
    if entry is None:
        return None
    state = read_shard(number, entry.value).state
    led = 0 if leader is None else leader.revision
    running = running_members(number, snapshot)
    own, limits, taken = read_leader(leader), read_moving(snapshot.value(MOVING)), tickets(snapshot)
    ticket = next((each for each in range(limits.at_once) if each not in taken), None)
    holds = next((each for each, run in taken.items() if own is not None and run == own.run), None)
    clones = clones_of(state, snapshot)
    return Seen(
        snapshot.revision,
        state,
        entry.revision,
        own,
        led,
        running,
        clones,
        ticket,
        holds,
        limits.rate,
        limits.pause,
        read_requests(snapshot.value(REQUESTS)),
    )


def running_members(number: int, snapshot: RegistrySnapshot) -> frozenset[Seat]:
    """Returns the replicas of the shard whose processes have a lease."""
    return frozenset(Seat(name, key.incarnation) for name, key in running_replicas(number, snapshot).items())


def clones_of(state: ShardState, snapshot: RegistrySnapshot) -> frozenset[Clone]:
    """Returns the running clones of the shards that this shard is to be split into."""
    return frozenset(
        Clone(shard, Seat(name, key.incarnation), key.clone.files, bool(key.clone.failed))
        for shard in state.split
        for name, key in running_replicas(shard, snapshot).items()
        if key.clone is not None
    )


def _asked_value(state: ShardState) -> Tree:
    """Returns the members that say who asked for what; an older program reads none of them, and leaves them out."""
    pause: Tree = {} if state.pause == NOT_PAUSED else {"pause": {"on": state.pause.on, "by": state.pause.by}}
    return {**({"by": state.by} if state.by else {}), **({"leader_by": state.leader_by} if state.leader_by else {}), **pause}


def _read_pause(found: Any) -> Pause:
    match found:
        case {"on": bool(on), **rest}:
            return Pause(on, read_asked_by(rest.get("by")))
    return NOT_PAUSED


def _listed(names: tuple[str, ...] | None) -> Value:
    return None if names is None else list(names)


def _names(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, value))


def _flat(member: Seat) -> list[Value]:
    return [member.node, member.incarnation]


def _named(member: Seat) -> Tree:
    return {"node": member.node, "incarnation": member.incarnation}
