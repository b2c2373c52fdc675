"""Creates a cluster in the registry: its shards and which nodes keep them, then the key by which nodes see them.

If a maker died, the cluster is half made, and the next maker makes it again: no node sees it until the last transaction. Of
several makers at a time, only the last one to begin continues.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import check_int, counted
from eventstore.records.cluster_map import SHARDS_MAX, even_slots
from eventstore_cluster.nodes.addresses import check_apart
from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view, nodes_of
from eventstore_cluster.nodes.first_read import first_read, read_while
from eventstore_cluster.nodes.placing.placement import place
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry, batches
from eventstore_cluster.registry.kept_keys import read_offers
from eventstore_cluster.registry.node_keys import fixed_addresses
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import CLUSTER, NEW, SHARDS, ClusterKey, ShardKey
from eventstore_cluster.replica.registry_state import Seat, ShardState

CREATING: Final = "creating"
_LOOK_FIRST: Final = "look with `eventstore cluster status`, and run this command again if there is none"


async def create_cluster(
    registry: EtcdRegistry,
    shards: int,
    replicas: int,
    in_sync_min: int | None = None,
    wait_s: float = 0.0,
    waits: Callable[[str], object] | None = None,
) -> ClusterView:
    """Creates a cluster on the nodes that run. `in_sync_min`: None: the lesser of 2 and `replicas`. `wait_s`: how long to wait
    until there are enough nodes. `waits`: called before that, with what is missing.

    Raises:
        InvalidArgument: a number is out of range, there are fewer nodes than replicas, or the cluster exists.
        EventStoreError: another process creates it at the same time; or it is unknown how a transaction ended.
        RegistryUnavailable, RegistryRefused: it may be half made.
    """
    check_int("shards", shards, 1, SHARDS_MAX)
    check_int("replicas", replicas, 1, SHARDS_MAX)
    least = min(2, replicas) if in_sync_min is None else check_int("in_sync_min", in_sync_min, 1, replicas)
    first = await first_read(registry)
    if waits is not None and wait_s and _lacks_nodes(first, replicas):
        running = ", ".join(nodes_of(first)) or "none"
        waits(f"waits up to {wait_s:g} seconds for {counted(replicas, 'node')} to run; now: {running}")
    seen = await read_while(registry, lambda seen: _lacks_nodes(seen, replicas), wait_s, first)
    keys = _shards(seen, shards, replicas, least, registry.by)
    stale = {key for key in seen.entries if key.startswith(SHARDS)} - keys.keys()
    return await write_cluster(registry, seen, {**dict.fromkeys(stale), **keys}, ClusterKey(uuid.uuid4(), 1, replicas, least))


async def write_cluster(
    registry: EtcdRegistry, seen: RegistrySnapshot, changes: Changes, cluster: ClusterKey, *, if_unknown: str = _LOOK_FIRST
) -> ClusterView:
    """Writes the shards of a cluster that did not exist when the registry was seen, then its key. `if_unknown`: what to do
    next, for the error that an answer was lost.

    Raises:
        EventStoreError: another process has begun that since, or it is unknown how a transaction ended.
        RegistryUnavailable, RegistryRefused: it may be half made.
    """
    first = {CLUSTER: 0, CREATING: seen.revision_of(CREATING)}
    begun = await _written(registry, first, {CREATING: {"by": uuid.uuid4().hex}}, if_unknown)
    compared = {CLUSTER: 0, CREATING: begun}
    for some in batches(changes):
        await _written(registry, compared, some, if_unknown)
    await _written(registry, compared, {CLUSTER: cluster.value(), CREATING: None}, if_unknown)
    view = cluster_view(await registry.read())
    if view is None:
        raise EventStoreError("the cluster was created and is gone again: something else deletes its keys in etcd")
    return view


async def wait_until_served(registry: EtcdRegistry, seconds: float) -> list[int]:
    """Waits until every shard is served, for at most `seconds`. Returns the shards that are not served then.

    Raises:
        RegistryUnavailable, RegistryRefused
    """
    return _unserved(await read_while(registry, _unserved, seconds))


def _lacks_nodes(seen: RegistrySnapshot, replicas: int) -> bool:
    return CLUSTER not in seen.entries and len(list(nodes_of(seen))) < replicas


def _unserved(seen: RegistrySnapshot) -> list[int]:
    view = cluster_view(seen)
    return [] if view is None else view.unserved()


def _shards(seen: RegistrySnapshot, shards: int, replicas: int, in_sync_min: int, by: str) -> dict[str, Tree | None]:
    """Returns the keys of the shards. `by`: who creates them. Raises InvalidArgument."""
    if CLUSTER in seen.entries:
        raise InvalidArgument(
            "the cluster exists already: `eventstore cluster status` shows it; another one needs another --cluster",
            field="cluster",
        )
    if offers := read_offers(seen):
        raise InvalidArgument(
            f"the cluster is that of {', '.join(offers)}, which etcd has lost: `eventstore cluster rebuild` writes it again; "
            "another one needs another --cluster",
            field="cluster",
        )
    nodes = list(nodes_of(seen))
    if len(nodes) < replicas:
        named = f"{counted(len(nodes), 'node')} of it ({', '.join(nodes)})" if nodes else "no node of it"
        verb = "runs" if len(nodes) <= 1 else "run"
        raise InvalidArgument(
            f"{named} {verb}, {replicas} replicas need as many nodes; start more with `eventstore node --name`, or ask "
            "for fewer --replicas",
            field="replicas",
            limit=len(nodes),
            value=replicas,
        )
    fixed = fixed_addresses(seen)
    for name in reversed(fixed):
        check_apart(name, fixed, shards)
    keys: dict[str, Tree | None] = {}
    for number, (names, slots) in enumerate(zip(place(nodes, shards, replicas), even_slots(shards), strict=True)):
        in_sync = frozenset(Seat(name, NEW) for name in names)
        state = ShardState(0, in_sync, names, in_sync_min, nonce=uuid.uuid4().hex, by=by, leader_by=by)
        keys[f"{SHARDS}{number}"] = ShardKey(uuid.uuid4(), slots, state).value()
    return keys


async def _written(registry: EtcdRegistry, compared: dict[str, int], changes: Changes, if_unknown: str) -> int:
    try:
        revision = await registry.transact(compared, changes)
    except OutcomeUnknown as error:
        raise EventStoreError(f"{error.message}: it is unknown whether the cluster was written; {if_unknown}") from None
    if revision is None:
        raise EventStoreError(
            "another process writes the cluster at the same time; look what it made with `eventstore cluster status`"
        )
    return revision
