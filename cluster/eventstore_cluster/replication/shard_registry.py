"""What one replica reads and writes in the registry: the keys of its shard, under a lease of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from eventstore.chunks.documents import Tree
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.replicated_keys import (
    LEADERS,
    LEFT,
    REPLICAS,
    SERVING,
    SHARDS,
    LeftKey,
    ReplicaKey,
    ServingKey,
    ShardKey,
    leader_value,
    read_shard,
    seen_of,
)
from eventstore_cluster.replica.registry_state import Seen, Swap
from eventstore_cluster.replica.replica import HANDED_OVER

REFUSED: Final = 0


class ShardRegistry:
    """The keys of the shard `number`."""

    def __init__(self, registry: EtcdRegistry, number: int, lease: Lease) -> None:
        self._registry, self._number, self._lease = registry, number, lease
        self._shard, self._leader, self._serving = f"{SHARDS}{number}", f"{LEADERS}{number}", f"{SERVING}{number}"
        self._key: ShardKey | None = None
        self.revision = 0

    async def read(self) -> Seen | None:
        """Returns both keys; None if the shard is not in the registry.

        Raises:
            RegistryUnavailable, RegistryRefused, Corrupt
        """
        snapshot = await self._registry.read_some(self._shard, self._leader, under=f"{REPLICAS}{self._number}/")
        self.revision = max(self.revision, snapshot.revision)
        value = snapshot.value(self._shard)
        if value is not None:
            self._key = read_shard(self._number, value)
        return seen_of(self._number, snapshot)

    async def hint(self) -> None:
        """Returns when the keys may have changed since the last read."""
        await self._registry.hint(self.revision)

    async def transact(self, swap: Swap) -> int | None:
        """Returns the revision that it made; 0: it was refused, and never takes effect; None: nobody knows."""
        assert self._key is not None, "what it compares was read"
        compared = {self._shard: swap.revision}
        if swap.leader_revision is not None:
            compared[self._leader] = swap.leader_revision
        changes: dict[str, Tree | None] = {self._shard: ShardKey(self._key.store, self._key.slots, swap.state).value()}
        if swap.leads is not None:
            changes[self._leader] = leader_value(swap.leads, int(time.time()))
        elif swap.yields:
            assert swap.state.leader is not None, "this one was elected"
            left = LeftKey(swap.state.epoch, swap.state.leader.node, HANDED_OVER)
            changes |= {self._leader: None, self._serving: None, f"{LEFT}{self._number}": left.value()}
        return await self._transact(compared, changes, {self._leader})

    async def present(self, node: str, replica: ReplicaKey) -> bool:
        """Tells operators of this replica. Returns False if this has to be tried again."""
        key = f"{REPLICAS}{self._number}/{node}"
        return bool(await self._transact({}, {key: replica.value()}, {key}))

    async def serve(self, leader_revision: int, serving: ServingKey) -> bool:
        """Says where clients find the leader, if it still leads. Returns False if this has to be tried again."""
        changes: dict[str, Tree | None] = {self._serving: serving.value()}
        return bool(await self._transact({self._leader: leader_revision}, changes, {self._serving}))

    async def say_left(self, left: LeftKey) -> None:
        """Tells operators why this leader ends, before its lease does; it is no harm if that fails."""
        await self._transact({}, {f"{LEFT}{self._number}": left.value()}, set())

    async def _transact(self, compared: Mapping[str, int], changes: dict[str, Tree | None], leased: set[str]) -> int | None:
        try:
            return await self._registry.transact(compared, changes, lease=self._lease, leased=leased) or REFUSED
        except OutcomeUnknown:
            return None
        except (RegistryUnavailable, RegistryRefused):
            return REFUSED
