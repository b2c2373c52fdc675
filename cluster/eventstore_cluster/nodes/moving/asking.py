"""Asks for other replicas of a shard: writes which nodes are to keep them. The shard's leader carries it out.

The caller may go away, and may ask again. What stands in the way is refused before anything is written.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.accepting_loss import keeps_none, shard_key
from eventstore_cluster.nodes.placing.fleet import Fleet, PlacedShard, needed
from eventstore_cluster.registry.cluster_requests import REQUESTS, requests_with
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.node_keys import MOVING, read_moving
from eventstore_cluster.registry.pauses import pause_text
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import SHARDS, ShardKey
from eventstore_cluster.replica.registry_state import ShardState


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for.

    Attributes:
        wanted: the nodes that are to keep replicas of the shard.
        revision: the registry's revision that says so.
        notes: what is not known about it.
    """

    shard: int
    wanted: tuple[str, ...]
    revision: int
    notes: tuple[str, ...] = ()


def moved(fleet: Fleet, shard: int, source: str, target: str) -> tuple[tuple[str, ...], str | None]:
    """Returns the nodes that keep replicas when the one on `source` has moved to `target`, and whom to hand over to, if anyone.

    Raises:
        InvalidArgument: there is no such shard, node or replica, or the target has one, cannot take it, or lacks space.
    """
    found = fleet.shards.get(shard)
    if found is None:
        raise InvalidArgument(f"there is no shard {shard}: `eventstore cluster status` shows those there are", field="shard")
    if source not in found.replicas:
        raise InvalidArgument(keeps_none(source, shard, found.replicas), field="from", value=source)
    if target in found.replicas:
        raise InvalidArgument(f"node {target} keeps a replica of shard {shard} already", field="to", value=target)
    check_takes(fleet, target, found)
    wanted = tuple(target if node == source else node for node in found.replicas)
    return wanted, target if found.leader == source else None


def check_takes(fleet: Fleet, target: str, shard: PlacedShard) -> None:
    """Raises InvalidArgument: the node is not known, does not run, is draining, or lacks space for the shard, as far as
    the sizes of both are known.
    """
    node = fleet.node(target)
    if node.leaves:
        raise InvalidArgument(
            f"node {target} is draining; `eventstore cluster drain {target} --undo` ends that", field="to", value=target
        )
    if not node.takes:
        raise InvalidArgument(f"node {target} does not run: eventstore node --name {target}", field="to", value=target)
    if node.free_bytes is not None and node.free_bytes < needed(shard.size):
        raise InvalidArgument(
            f"node {target} has {node.free_bytes:,} bytes free, and the replica needs {needed(shard.size):,}: make room, or "
            "name another node",
            field="to",
            value=target,
            limit=node.free_bytes,
        )


def unknown_space(fleet: Fleet, shard: int, target: str) -> str | None:
    """Returns that it is not known whether the node has space for the shard, and how to know; None if it is."""
    if fleet.node(target).free_bytes is None or not fleet.shards[shard].silent:
        return None
    return (
        f"Shard {shard} does not say here how large it is, so whether node {target} has space for it is not known. `eventstore "
        "cluster status` shows why: the shard's leader must be reachable from here, and a token needs `stats`."
    )


async def ask(
    registry: EtcdRegistry, seen: RegistrySnapshot, shard: int, wanted: Sequence[str], leader: str | None = None
) -> Asked:
    """Writes which nodes are to keep replicas of the shard, the preferred leader first, and to which of them leadership is
    handed over.

    Raises:
        InvalidArgument: too few would be left, or something else is wanted of the shard already.
        EventStoreError: the shard has changed since it was seen, and nothing was written; or it is unknown whether it was.
        RegistryUnavailable, RegistryRefused
    """
    found = shard_key(seen, shard)
    check_free(seen, shard)
    if len(wanted) < found.state.in_sync_min or len(set(wanted)) < len(wanted):
        raise InvalidArgument(
            f"shard {shard} would be left with {len(set(wanted))} replicas, and {found.state.in_sync_min} must be in sync",
            field="replicas",
            limit=found.state.in_sync_min,
            value=len(set(wanted)),
        )
    state = found.state.asked_by(registry.by).to_be_led_by(leader, registry.by)
    if tuple(wanted) != found.state.replicas:
        state = replace(state, wanted=tuple(wanted), before=found.state.replicas)
    return Asked(shard, tuple(wanted), await write_shard(registry, seen, shard, replace(found, state=state)))


async def write_shard(registry: EtcdRegistry, seen: RegistrySnapshot, shard: int, key: ShardKey) -> int:
    """Writes the key of a shard that has not changed since it was seen; returns the revision.

    Raises:
        EventStoreError: the shard has changed since it was seen, and nothing was written; or it is unknown whether it was.
        RegistryUnavailable, RegistryRefused
    """
    name = f"{SHARDS}{shard}"
    try:
        revision = await registry.transact({name: seen.revision_of(name)}, {name: key.value()})
    except OutcomeUnknown as error:
        raise EventStoreError(
            f"{error.message}: `eventstore cluster plans` shows whether the replicas of shard {shard} move"
        ) from None
    if revision is None:
        raise EventStoreError(f"shard {shard} has changed meanwhile, and nothing was asked of it; look, and ask again")
    return revision


async def write_for_all(
    registry: EtcdRegistry, seen: RegistrySnapshot, details: Tree, changes: Changes, compared: Mapping[str, int], what: str
) -> None:
    """Writes what is asked of the whole cluster, or of a node, together with who asks for it, for the audit trail. If others
    ask for something at the same time, waits for its turn.

    `details`: of that record. `what`: names what changed, for the error.

    Raises:
        EventStoreError: a key was written by another revision than is `compared`, and nothing was written.
        RegistryUnavailable, RegistryRefused, OutcomeUnknown
    """
    id_ = uuid.uuid4().hex
    while True:
        requests = requests_with(seen.value(REQUESTS), id_, registry.by, int(time.time()), details)
        if await registry.transact({**compared, REQUESTS: seen.revision_of(REQUESTS)}, {**changes, REQUESTS: requests}):
            return
        seen = await registry.read_some(REQUESTS, *compared, under=())
        if any(seen.revision_of(key) != revision for key, revision in compared.items()):
            raise EventStoreError(f"{what} changed meanwhile, and nothing was written; ask again")


def given_away(state: ShardState) -> str:
    """Returns a clause that says that a finished split cannot be cancelled; empty if the shard was never split."""
    return "; the slots that it has given away stay where they are" if state.splits else ""


def check_free(seen: RegistrySnapshot, shard: int) -> None:
    """Raises InvalidArgument: there is no such shard, or something is wanted of it that is not done yet."""
    state = shard_key(seen, shard).state
    busy, back = None, f", or `eventstore cluster cancel {shard}` takes that back"
    if state.wanted is not None:
        busy = f"the replicas of shard {shard} are being moved to {', '.join(state.wanted)}"
    elif state.successor is not None:
        busy = f"shard {shard} is to be handed over to {state.successor}"
    elif state.split:
        busy, back = f"shard {shard} is being split, which `eventstore cluster split {shard} --call-off` takes back", ""
    if busy is not None:
        wait = "wait until it is done, which `eventstore cluster plans --watch` shows"
        paused = pause_text(shard, state, read_moving(seen.value(MOVING)).pause)
        raise InvalidArgument(f"{busy}: {wait if paused is None else f'it is {paused}'}{back}", field="shard", value=shard)
