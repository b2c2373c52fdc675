"""Rebuilds a registry: nodes offer what it said, their replicas say how their logs end, and the result is a new generation.

Asking again is harmless: a shard that an earlier attempt has written stays as it is, for its replicas may lead and acknowledge
since then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eventstore.chunks.documents import Tree
from eventstore.errors import InvalidArgument
from eventstore.records.cluster_map import owners_of, slots_text
from eventstore_cluster.nodes.creation import wait_until_served, write_cluster
from eventstore_cluster.nodes.first_read import first_read, read_while
from eventstore_cluster.nodes.rebuilding.choice import NONCE, Choice, choose, newest
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.kept_keys import Kept, KeptShard, read_offers
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import running_replicas
from eventstore_cluster.registry.replicated_keys import CLUSTER, LEFT, SHARDS, ClusterKey, LeftKey, read_shard


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is to be written.

    Attributes:
        seen: the snapshot on which the plan is based.
        choices: of the shards that are not written yet.
    """

    seen: RegistrySnapshot
    cluster: ClusterKey
    nodes: tuple[str, ...]
    choices: tuple[Choice, ...]

    @property
    def risks(self) -> list[str]:
        """Why what was acknowledged may be lost; empty if nothing can be."""
        return [risk for choice in self.choices for risk in choice.risks]

    def changes(self, by: str = "") -> Changes:
        """Returns the keys of the shards. `by`: who asked for it."""
        keys: dict[str, Tree | None] = {}
        for choice in self.choices:
            state = replace(choice.key.state, leader_by=by)
            keys[f"{SHARDS}{choice.shard}"] = replace(choice.key, state=state).value()
            keys[f"{LEFT}{choice.shard}"] = LeftKey(choice.key.state.epoch, "", NONCE).value()
        return keys


async def planned_rebuild(etcd: EtcdOptions, cluster: str, wait_s: float) -> RebuildPlan:
    """Returns how the cluster is to be rebuilt. `wait_s`: how long to wait until all replicas are seen.

    Raises:
        InvalidArgument: the cluster exists, nodes offer different ones, or what they offer is not a whole one.
        UnsupportedVersion: the program of another node was newer.
        RegistryUnavailable, RegistryRefused, Corrupt
    """
    async with Gateway(etcd) as gateway:
        registry = EtcdRegistry(gateway, cluster)
        first = await first_read(registry)
        return plan_of(await read_while(registry, lambda seen: not _is_decided(seen), wait_s, first))


def _is_decided(seen: RegistrySnapshot) -> bool:
    """Whether more nodes would change nothing."""
    try:
        return not plan_of(seen).risks
    except InvalidArgument:
        return CLUSTER in seen.entries


def plan_of(seen: RegistrySnapshot) -> RebuildPlan:
    """Returns how the cluster is to be rebuilt from what was seen.

    Raises:
        InvalidArgument: the cluster exists, nodes offer different ones, or what they offer is not a whole one.
        UnsupportedVersion: the program of another node was newer.
        Corrupt
    """
    if CLUSTER in seen.entries:
        raise InvalidArgument(
            "the cluster exists in etcd, and is not rebuilt: `eventstore cluster status` shows it; for a shard whose replicas "
            "are lost there is `eventstore cluster lead --accept-loss`",
            field="cluster",
        )
    offers = read_offers(seen)
    if not offers:
        raise InvalidArgument(
            "no node offers what it knows of the cluster: start the nodes with their folders on this etcd; --cluster must be "
            "the name that they have",
            field="cluster",
        )
    cluster, copies = _one_cluster(offers), _copies(offers)
    shards = {number: newest(by_node) for number, by_node in copies.items()}
    _check_whole(shards)
    generation = 1 + max(each.key.state.generation for each in shards.values())
    choices = [
        choose(number, copies[number], running_replicas(number, seen), generation)
        for number, kept in sorted(shards.items())
        if not _is_written(number, kept, seen)
    ]
    return RebuildPlan(seen, cluster, tuple(offers), tuple(choices))


def _one_cluster(offers: Mapping[str, Kept]) -> ClusterKey:
    """Returns the newest key of the cluster. Raises InvalidArgument: there are several clusters."""
    by_uuid = {kept.cluster.uuid: node for node, kept in offers.items()}
    if len(by_uuid) > 1:
        named = "; ".join(f"{node} belongs to {found}" for found, node in by_uuid.items())
        raise InvalidArgument(
            f"nodes of different clusters are on this etcd: {named}. Stop those of the other one, or give it another --cluster",
            field="cluster",
        )
    return max((kept.cluster for kept in offers.values()), key=lambda key: key.layout)


def _copies(offers: Mapping[str, Kept]) -> dict[int, dict[str, KeptShard]]:
    """Returns the copies of each shard's key, by node. Raises InvalidArgument: two are of different stores or slots."""
    found: dict[int, dict[str, KeptShard]] = {}
    for node, kept in offers.items():
        for number, shard in kept.shards.items():
            copies = found.setdefault(number, {})
            for other, known in copies.items():
                _check_same(number, (other, known), (node, shard))
            copies[node] = shard
    return found


def _check_same(number: int, *copies: tuple[str, KeptShard]) -> None:
    (_, known), (_, shard) = copies
    was_split = known.key.state.splits != shard.key.state.splits  # since one of the two was kept
    if known.key.store == shard.key.store and (known.key.slots == shard.key.slots or was_split):
        return
    sides = "; ".join(f"on {on} it is store {one.key.store} with slots {slots_text(one.key.slots)}" for on, one in copies)
    raise InvalidArgument(
        f"nodes differ about shard {number}: {sides}. Stop the node that is not of this cluster", field="shard", value=number
    )


def _check_whole(shards: Mapping[int, KeptShard]) -> None:
    try:
        owners_of({number: kept.key.slots for number, kept in shards.items()})
    except InvalidArgument as error:
        raise InvalidArgument(
            f"what the nodes know is not the whole cluster: {error.message}; start those that have the other shards",
            field=error.field,
            value=error.value,
        ) from None


def _is_written(number: int, kept: KeptShard, seen: RegistrySnapshot) -> bool:
    """Whether an earlier attempt has written the shard: its replicas may have acknowledged more since."""
    value = seen.value(f"{SHARDS}{number}")
    if value is None:
        return False
    found = read_shard(number, value)
    return found.store == kept.key.store and found.state.generation > kept.key.state.generation


async def rebuilt(etcd: EtcdOptions, cluster: str, plan: RebuildPlan, wait_s: float) -> list[int]:
    """Writes the registry, and waits up to `wait_s` seconds until every shard is served. Returns the shards that are not served
    then.

    Raises:
        EventStoreError: another process does it at the same time, or it is unknown how a transaction ended; ask again.
        RegistryUnavailable, RegistryRefused: it may be half written; ask again.
    """
    async with Gateway(etcd) as gateway:
        registry = EtcdRegistry(gateway, cluster)
        await write_cluster(registry, plan.seen, plan.changes(registry.by), plan.cluster)
        return await wait_until_served(registry, wait_s)
