"""Asks for the split of a shard: writes the new shards, in preparation, and what they are to get. Its leader carries it out.

The caller may go away, and may call it off until the slots are given away. What stands in the way is refused before anything
is written.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.records.cluster_map import SlotRange
from eventstore_cluster.nodes.accepting_loss import check_format, shard_key
from eventstore_cluster.nodes.addresses import check_apart
from eventstore_cluster.nodes.moving.asking import check_free, given_away
from eventstore_cluster.nodes.splitting.plan import even_parts, new_numbers, spread_leaders
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.lineage import Birth, Lineage
from eventstore_cluster.registry.node_keys import NODES, fixed_addresses
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    SHARDS,
    ShardKey,
    read_cluster,
    read_leader,
    read_shard,
)
from eventstore_cluster.replica.registry_state import ShardState


@dataclass(frozen=True, slots=True)
class AskedSplit:
    """A split that was asked for.

    Attributes:
        keeps: the slots that stay with the shard.
        gives: the slots that each new shard gets.
        times: how often the shard was split before.
    """

    shard: int
    keeps: tuple[SlotRange, ...]
    gives: dict[int, tuple[SlotRange, ...]]
    times: int


async def ask_to_split(registry: EtcdRegistry, seen: RegistrySnapshot, shard: int, parts: int) -> AskedSplit:
    """Writes that a shard is to be split into so many.

    Raises:
        InvalidArgument: there is no such shard, it has too few slots, something else is wanted of it, or nodes on one machine
            have no ports for more shards; says what.
        EventStoreError: the shard or the cluster has changed since it was seen, and nothing was written; or that is unknown.
        RegistryUnavailable, RegistryRefused
    """
    check_format(seen)
    found, cluster = shard_key(seen, shard), read_cluster(seen.value(CLUSTER) or {})
    check_free(seen, shard)
    if not found.slots:
        raise InvalidArgument(f"shard {shard} is in preparation itself, and has no slots yet", field="shard", value=shard)
    keeps, *parted = even_parts(shard, found.slots, parts)
    there = [int(key.removeprefix(SHARDS)) for key in seen.entries if key.startswith(SHARDS)]
    numbers = new_numbers(cluster.next_shard, there, len(parted))
    fixed = fixed_addresses(seen)
    for name in reversed(fixed):
        check_apart(name, fixed, numbers[-1] + 1)
    away = [name for name in found.state.replicas if NODES + name not in seen.entries]
    spread = spread_leaders(found.state.replicas, _leads(seen), len(numbers), away)
    changes: dict[str, Tree | None] = {
        f"{SHARDS}{number}": _in_preparation(found, shard, slots, nodes, registry.by).value()
        for number, slots, nodes in zip(numbers, parted, spread, strict=True)
    }
    compared = dict.fromkeys(changes, 0) | {each: seen.revision_of(each) for each in (CLUSTER, f"{SHARDS}{shard}")}
    changes[CLUSTER] = replace(cluster, next_shard=numbers[-1] + 1).value()
    changes[f"{SHARDS}{shard}"] = replace(found, state=replace(found.state.asked_by(registry.by), split=tuple(numbers))).value()
    await _written(registry, compared, changes, shard)
    return AskedSplit(shard, keeps, dict(zip(numbers, parted, strict=True)), found.state.splits)


def _leads(seen: RegistrySnapshot) -> Counter[str]:
    """Returns how many shards each node leads, or is to lead when they have slots."""
    led = [read_leader(entry) for key, entry in seen.entries.items() if key.startswith(LEADERS)]
    shards = [read_shard(0, entry.value) for key, entry in seen.entries.items() if key.startswith(SHARDS)]
    born = [each.state.replicas[0] for each in shards if not each.slots]
    return Counter([*(each.member.node for each in led if each is not None), *born])


def _in_preparation(parent: ShardKey, shard: int, slots: Sequence[SlotRange], nodes: tuple[str, ...], by: str) -> ShardKey:
    """Returns the key of a new shard: no replica is in sync, and so none leads. `by`: who asked for it."""
    state = ShardState(
        0,
        frozenset(),
        nodes,
        parent.state.in_sync_min,
        generation=parent.state.generation,
        nonce=uuid.uuid4().hex,
        by=by,
        leader_by=by,
    )
    return ShardKey(uuid.uuid4(), (), state, Lineage(birth=Birth(shard, tuple(slots))))


async def call_off(registry: EtcdRegistry, seen: RegistrySnapshot, shard: int) -> tuple[int, ...]:
    """Cancels the split of a shard. Returns the numbers of the shards that were in preparation.

    Raises:
        InvalidArgument: no split is pending; the slots may have been given away.
        EventStoreError: the shard has changed meanwhile, and nothing was written; or that is unknown.
        RegistryUnavailable, RegistryRefused
    """
    found = shard_key(seen, shard)
    if not found.state.split:
        raise InvalidArgument(f"shard {shard} is not being split{given_away(found.state)}", field="shard", value=shard)
    key = f"{SHARDS}{shard}"
    changes: dict[str, Tree | None] = {f"{SHARDS}{child}": None for child in found.state.split}
    changes[key] = replace(found, state=replace(found.state.asked_by(registry.by), split=())).value()
    await _written(registry, {key: seen.revision_of(key)}, changes, shard)
    return found.state.split


async def _written(registry: EtcdRegistry, compared: dict[str, int], changes: Changes, shard: int) -> None:
    try:
        revision = await registry.transact(compared, changes)
    except OutcomeUnknown as error:
        raise EventStoreError(
            f"{error.message}: `eventstore cluster status --etcd` shows whether shard {shard} is split"
        ) from None
    if revision is None:
        raise EventStoreError(
            f"shard {shard}, or the cluster, has changed meanwhile, and nothing was written; look, and ask again"
        )


def waits_for(seen: RegistrySnapshot, asked: AskedSplit) -> bool:
    """Whether the split is pending: the slots were not given away yet, and it was not cancelled."""
    return shard_key(seen, asked.shard).state.split == tuple(asked.gives)


def is_done(seen: RegistrySnapshot, asked: AskedSplit) -> bool:
    """Whether the new shards have their slots."""
    values = [seen.value(f"{SHARDS}{number}") for number in asked.gives]
    return all(value is not None and bool(read_shard(0, value).slots) for value in values)
