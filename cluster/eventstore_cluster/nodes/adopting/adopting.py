"""Makes a store without replicas the first shard, or shards, of a new cluster, and its folder the folder of the first node, in
place.

The registry is written while the store is still whole, before its folder becomes a node's. So wherever an attempt ends, the
folder is whole as the one or as the other, and the next attempt continues: it recognises the cluster by its uuid, until a
replica leads in it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.adopting.adopted_folder import AdoptedFolder, AdoptedShard, adopted_folder, check_is_folder
from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view, nodes_of
from eventstore_cluster.nodes.creation import write_cluster
from eventstore_cluster.nodes.first_read import first_read
from eventstore_cluster.nodes.node_file import INTENT, node_file
from eventstore_cluster.nodes.options import check_name
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.kept_keys import kept_of, read_offers
from eventstore_cluster.registry.lineage import Lineage
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEFT,
    SHARDS,
    ClusterKey,
    LeftKey,
    ShardKey,
    read_cluster,
    read_shard,
)
from eventstore_cluster.replica.registry_state import Seat, ShardState
from eventstore_cluster.shard_folders import NODE_FILE

_ADOPTED = "the store was adopted"
_AGAIN = "run this command again: the folder is that of a single store until it is done"
_REPLICAS = _IN_SYNC_MIN = 2
"""Of shards that are made later; an adopted shard has one replica, until more are asked for."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was adopted.

    Attributes:
        events: how many each shard has, by number; empty if an earlier attempt had come so far that only its leftovers were
            removed.
    """

    cluster: uuid.UUID
    node: str
    events: dict[int, int]


async def adopt(registry: EtcdRegistry, data: Path, node: str) -> Adopted:
    """Turns the folder into the folder of node `node`, and its shards into shards of a new cluster. Nothing else may have the
    folder open.

    Raises:
        InvalidArgument: there is such a cluster or node already.
        FolderRefused, Corrupt: the folder is in use, or holds no store without replicas.
        EventStoreError: another process writes the cluster, or it is unknown how a transaction ended.
        RegistryUnavailable, RegistryRefused
    """
    check_name(node)
    check_is_folder(data)
    seen = await first_read(registry)
    if (data / NODE_FILE).exists() and (data / INTENT).exists():
        with node_file(data, node) as done:  # which removes what is left
            assert done.cluster is not None
            return Adopted(done.cluster, node, {})
    with adopted_folder(data) as folder:
        try:
            _check(seen, folder, node)
            shards = await trio.to_thread.run_sync(_prepared, folder, node)
            keys = {each.identity.shard: _key(each, node, registry.by) for each in shards}
            view = await _written(registry, seen, folder, keys)
            kept = kept_of(view.cluster, view.shards, await registry.read())
            await trio.to_thread.run_sync(folder.commit, node, kept)
        except OSError as error:
            raise EventStoreError(f"{data}: {error}; it is still the store that it was, or run this command again") from error
        return Adopted(folder.cluster, node, {each.identity.shard: each.events for each in shards})


def _prepared(folder: AdoptedFolder, node: str) -> list[AdoptedShard]:
    folder.begin()
    folder.make_shards()
    return folder.open_logs(node)


def _check(seen: RegistrySnapshot, folder: AdoptedFolder, node: str) -> None:
    if offers := read_offers(seen):
        raise InvalidArgument(
            f"the cluster is that of {', '.join(offers)}, which etcd has lost: `eventstore cluster rebuild` writes it again; "
            "a new one needs another --cluster",
            field="cluster",
        )
    if (running := nodes_of(seen).get(node)) is not None:
        raise InvalidArgument(
            f"a node {node} runs at {running.address}; choose another --name for the node of this folder",
            field="name",
            value=node,
        )
    if CLUSTER in seen.entries and not _is_own(seen, folder):
        raise InvalidArgument(
            "the cluster exists already, and a store becomes a cluster of its own: choose another --cluster, or copy "
            "its events with `eventstore export` and `eventstore import`",
            field="cluster",
        )


def _is_own(seen: RegistrySnapshot, folder: AdoptedFolder) -> bool:
    """Whether an earlier attempt wrote the cluster, in which no replica has led yet."""
    if read_cluster(seen.value(CLUSTER) or {}).uuid != folder.cluster:
        return False
    found = {int(key.removeprefix(SHARDS)): entry.value for key, entry in seen.entries.items() if key.startswith(SHARDS)}
    shards = {number: read_shard(number, value) for number, value in found.items()}
    stores = {number: key.store for number, key in shards.items()}
    return stores == folder.stores and all(key.state.leader is None for key in shards.values())


def _key(shard: AdoptedShard, node: str, by: str) -> ShardKey:
    """Returns the key of a shard of which this node has the only replica, and everything. `by`: who asked for that."""
    own, in_sync = shard.identity, frozenset({Seat(node, shard.incarnation)})
    state = ShardState(shard.epoch, in_sync, (node,), 1, nonce=uuid.uuid4().hex, by=by, leader_by=by)
    return ShardKey(own.store, own.slots, state, Lineage(own.splits, own.ancestors, broker=own.broker))


async def _written(
    registry: EtcdRegistry, seen: RegistrySnapshot, folder: AdoptedFolder, keys: dict[int, ShardKey]
) -> ClusterView:
    """Writes the cluster, or its shards again if an earlier attempt wrote it."""
    if CLUSTER not in seen.entries:
        stale: Changes = dict.fromkeys(key for key in seen.entries if key.startswith(SHARDS))
        shards = {f"{SHARDS}{number}": key.value() for number, key in keys.items()}
        shards |= {f"{LEFT}{number}": LeftKey(key.state.epoch, "", _ADOPTED).value() for number, key in keys.items()}
        cluster = ClusterKey(folder.cluster, folder.number, _REPLICAS, _IN_SYNC_MIN)
        return await write_cluster(registry, seen, {**stale, **shards}, cluster, if_unknown=_AGAIN)
    for number, key in keys.items():
        name = f"{SHARDS}{number}"
        before = read_shard(number, seen.value(name) or {}).state
        state = replace(key.state, nonce=before.nonce, history=before.history).written_by(key.state.nonce)
        try:
            applied = await registry.transact({name: seen.revision_of(name)}, {name: replace(key, state=state).value()})
        except OutcomeUnknown as error:
            raise EventStoreError(f"{error.message}: it is unknown whether the cluster was written; {_AGAIN}") from None
        if applied is None:
            raise EventStoreError("another process writes the cluster at the same time; ask again")
    view = cluster_view(await registry.read())
    assert view is not None, "it was there before"
    return view
