"""Moves a replica of a shard to another node, and waits until it is there."""

from __future__ import annotations

from dataclasses import replace

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.accepting_loss import shard_key
from eventstore_cluster.nodes.first_read import wait_on_registry
from eventstore_cluster.nodes.moving.asking import Asked, ask, check_free, moved, unknown_space
from eventstore_cluster.nodes.moving.plans import survey, with_registry
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.registry import RegistrySnapshot


def move(etcd: EtcdOptions, cluster: str, shard: int, source: str, target: str, *, unsized: bool = False) -> Asked:
    """Asks that the replica on `source` moves to `target`. `unsized`: also if it is not known whether the target has space.

    Raises:
        InvalidArgument: there is no such shard, node or replica, or the target has one, cannot take it, or lacks space; without
            `unsized` also if that is not known.
        EventStoreError: the shard has changed since it was seen, and nothing was written; or it is unknown whether it was.
        RegistryUnavailable, RegistryRefused
    """
    found = survey(etcd, cluster, 0.0, shard)
    check_free(found.seen, shard)
    wanted, leader = moved(found.fleet, shard, source, target)
    unknown = unknown_space(found.fleet, shard, target)
    if unknown is not None and not unsized:
        raise InvalidArgument(f"{unknown} Ask again then, or say --yes to move it nevertheless", field="yes")

    async def write(registry: EtcdRegistry, _: RegistrySnapshot) -> Asked:
        asked = await ask(registry, found.seen, shard, wanted, leader)
        return replace(asked, notes=() if unknown is None else (unknown,))

    return with_registry(etcd, cluster, write)


def wait_until_moved(etcd: EtcdOptions, cluster: str, asked: Asked, wait_s: float) -> float:
    """Waits until the replicas are where they were wanted. Returns how many seconds that took.

    Raises:
        EventStoreError: it takes longer, and continues; or it was taken back.
        RegistryUnavailable, RegistryRefused
    """
    seen, seconds = wait_on_registry(etcd, cluster, lambda seen: _is_wanted(seen, asked), wait_s)
    return _done(seen, asked, seconds)


def _is_wanted(seen: RegistrySnapshot, asked: Asked) -> bool:
    return shard_key(seen, asked.shard).state.wanted == asked.wanted


def _done(seen: RegistrySnapshot, asked: Asked, seconds: float) -> float:
    state = shard_key(seen, asked.shard).state
    if _is_wanted(seen, asked):
        raise EventStoreError(
            f"the replicas of shard {asked.shard} are not moved after {seconds:.0f} s; the move continues: `eventstore cluster "
            "plans` shows how far it is"
        )
    if state.replicas != asked.wanted:
        raise EventStoreError(
            f"the replicas of shard {asked.shard} are on {', '.join(state.replicas)}: what was asked for was taken back"
        )
    return seconds
