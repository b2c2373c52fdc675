"""Splits a shard from the command line: asks, and waits until the new shards serve."""

from __future__ import annotations

from eventstore.errors import EventStoreError
from eventstore_cluster.nodes.cluster_view import cluster_view
from eventstore_cluster.nodes.first_read import first_read_of_cluster, on_registry, wait_on_registry
from eventstore_cluster.nodes.splitting.asking import AskedSplit, ask_to_split, call_off, is_done, waits_for
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.preparing import preparing_of
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import SERVING, read_serving


def split(etcd: EtcdOptions, cluster: str, shard: int, parts: int) -> AskedSplit:
    """Asks that a shard is split into so many.

    Raises:
        InvalidArgument: there is no such shard, it has too few slots, something else is wanted of it, or nodes on one machine
            have no ports for more shards; says what.
        EventStoreError: the shard or the cluster has changed since it was seen, and nothing was written; or that is unknown.
        RegistryUnavailable, RegistryRefused
    """

    async def asked(registry: EtcdRegistry) -> AskedSplit:
        return await ask_to_split(registry, await first_read_of_cluster(registry), shard, parts)

    return on_registry(etcd, cluster, asked)


def serving_address(etcd: EtcdOptions, cluster: str, shard: int) -> str | None:
    """Returns HOST:PORT of the leader of a shard, for clients; None: none serves.

    Raises:
        RegistryUnavailable, RegistryRefused
    """
    serving = read_serving(on_registry(etcd, cluster, first_read_of_cluster).value(f"{SERVING}{shard}"))
    return None if serving is None else serving.address


def take_back(etcd: EtcdOptions, cluster: str, shard: int) -> tuple[int, ...]:
    """Cancels the split of a shard. Returns the numbers of the shards that were in preparation.

    Raises:
        InvalidArgument: no split is pending; the slots may have been given away.
        EventStoreError: the shard has changed meanwhile, and nothing was written; or that is unknown.
        RegistryUnavailable, RegistryRefused
    """

    async def asked(registry: EtcdRegistry) -> tuple[int, ...]:
        return await call_off(registry, await first_read_of_cluster(registry), shard)

    return on_registry(etcd, cluster, asked)


def wait_until_split(etcd: EtcdOptions, cluster: str, asked: AskedSplit, wait_s: float) -> float:
    """Waits until the new shards serve. Returns how many seconds that took.

    Raises:
        EventStoreError: it takes longer, and continues; or it was called off.
        RegistryUnavailable, RegistryRefused
    """
    seen, seconds = wait_on_registry(etcd, cluster, lambda seen: _is_pending(seen, asked), wait_s)
    return _done(seen, asked, seconds)


def _is_pending(seen: RegistrySnapshot, asked: AskedSplit) -> bool:
    return waits_for(seen, asked) or (is_done(seen, asked) and not _all_serve(seen, asked))


def _all_serve(seen: RegistrySnapshot, asked: AskedSplit) -> bool:
    return all(f"{SERVING}{number}" in seen.entries for number in asked.gives)


def _unserved(seen: RegistrySnapshot, asked: AskedSplit) -> str:
    view = cluster_view(seen)
    troubles = {} if view is None else view.troubles()
    return "; ".join(f"shard {number}: {troubles[number]}" for number in asked.gives if number in troubles)


def _done(seen: RegistrySnapshot, asked: AskedSplit, seconds: float) -> float:
    if waits_for(seen, asked):
        why = "; ".join(f"{each.node} {each.text}" for each in preparing_of(seen) if each.shard in asked.gives)
        raise EventStoreError(
            f"shard {asked.shard} is not split after {seconds:.0f} s, and still waits ({why or 'no clone has begun'}); "
            f"`eventstore cluster split {asked.shard} --call-off` takes it back"
        )
    if not is_done(seen, asked):
        raise EventStoreError(f"the split of shard {asked.shard} was called off")
    if not _all_serve(seen, asked):
        raise EventStoreError(f"shard {asked.shard} is split, but not all new shards serve: {_unserved(seen, asked)}")
    return seconds
