"""What one replica reads and writes in the registry: the keys of its shard, under a lease of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from eventstore.chunks.documents import Tree
from eventstore.store.data_folder import FIRST_FORMAT
from eventstore_cluster.registry.cluster_requests import RECORDED_BY, REQUESTS
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.node_keys import MOVING, ticket_value
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replica_keys import REPLICAS, ReplicaKey, running_replicas
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    LEFT,
    SERVING,
    SHARDS,
    UNSERVED,
    LeftKey,
    ServingKey,
    ShardKey,
    leader_value,
    read_cluster,
    read_shard,
    seen_of,
)
from eventstore_cluster.replica.registry_state import Seat, Seen, Swap
from eventstore_cluster.replica.replica import HANDED_OVER
from eventstore_cluster.replication.slot_gifts import Cut, give, keys_of

REFUSED: Final = 0


def _no_cut() -> Cut:
    raise AssertionError("nothing is held back")


class ShardRegistry:
    """The keys of the shard `number`, for the process `run`.

    Attributes:
        key: as it was read last.
        cut: returns where the log is split that slots leave.
        went_back: a read showed an earlier revision than a read before it: the registry was restored from an older copy, which
            may lack what was read since.
    """

    def __init__(self, registry: EtcdRegistry, number: int, lease: Lease, run: str) -> None:
        self._registry, self._number, self._lease, self._run = registry, number, lease, run
        self._shard, self._leader, self._serving = f"{SHARDS}{number}", f"{LEADERS}{number}", f"{SERVING}{number}"
        self._of_all = (CLUSTER, REQUESTS) if number == RECORDED_BY else (CLUSTER,)
        self.key: ShardKey | None = None
        self.cut: Callable[[], Cut] = _no_cut
        self.revision = 0
        self.went_back = False
        self._latest = RegistrySnapshot(0, {})
        self._latest_children: tuple[int, ...] = ()

    async def read(self) -> Seen | None:
        """Returns both keys; None if the shard is not in the registry.

        Raises:
            RegistryUnavailable, RegistryRefused, Corrupt
        """
        children = () if self.key is None else self.key.state.split
        keys = [self._shard, self._leader, *self._of_all, *(f"{SHARDS}{child}" for child in children)]
        under = [MOVING, *(f"{REPLICAS}{number}/" for number in (self._number, *children))]
        known = self._latest if children == self._latest_children else None
        asked_at = self.revision
        snapshot = await self._registry.read_some(*keys, under=under, known=known)
        self.went_back = self.went_back or snapshot.revision < asked_at
        value = snapshot.value(self._shard)
        if value is not None and snapshot.revision >= self.revision:
            self.key, self._latest, self._latest_children = read_shard(self._number, value), snapshot, children
        self.revision = max(self.revision, snapshot.revision)
        return seen_of(self._number, snapshot)

    @property
    def format(self) -> int:
        """The format of the cluster, as it was read last; the first one if it was not."""
        value = self._latest.value(CLUSTER)
        return FIRST_FORMAT if value is None else read_cluster(value).format

    def children(self) -> dict[int, ShardKey]:
        """Returns the shards in preparation that are to get slots of this one, as they were read last."""
        return {} if self.key is None else keys_of(self.key.state.split, self._latest)

    def says_in_sync(self, member: Seat) -> bool:
        """Whether the replica was in sync when the keys were read last."""
        return self.key is not None and member in self.key.state.in_sync

    async def hint(self) -> None:
        """Returns when the keys may have changed since the last read."""
        await self._registry.hint(self.revision, self._concerns)

    async def watch(self, heard: Callable[[], None]) -> None:
        """Calls `heard` whenever the keys may have changed since they were read last; until cancelled."""
        await self._registry.watch(lambda: self.revision, heard, self._concerns)

    def _concerns(self, key: str) -> bool:
        """Whether a key is read here: with many shards, most changes are of others."""
        kind, _, rest = key.partition("/")
        children = () if self.key is None else self.key.state.split
        return kind in (*self._of_all, MOVING) or rest.partition("/")[0] in {str(each) for each in (self._number, *children)}

    async def transact(self, swap: Swap) -> int | None:
        """Returns the revision that it made; 0: it was refused, and never takes effect; None: unknown."""
        assert self.key is not None, "what it compares was read"
        compared = {self._shard: swap.revision}
        if swap.leader_revision is not None:
            compared[self._leader] = swap.leader_revision
        own = replace(self.key, state=swap.state)
        changes: dict[str, Tree | None] = {}
        heirs: dict[str, int] = {}
        if swap.gifts:
            gift = give(self._number, own, swap, self.cut(), self._latest)
            own, heirs = gift.own, gift.heirs
            compared |= gift.compared
            changes |= gift.changes
        changes[self._shard] = own.value()
        if swap.leads is not None:
            changes[self._leader] = leader_value(swap.leads, int(time.time()))
        elif swap.yields:
            assert swap.state.leader is not None, "this one was elected"
            left = LeftKey(swap.state.epoch, swap.state.leader.node, HANDED_OVER)
            changes |= {self._leader: None, self._serving: None, f"{LEFT}{self._number}": left.value()}
        leased = {self._leader}
        if swap.takes is not None:
            ticket = f"{MOVING}/{swap.takes}"
            compared[ticket], changes[ticket] = 0, ticket_value(self._number, self._run)
            leased.add(ticket)
        if swap.frees is not None:
            changes[f"{MOVING}/{swap.frees}"] = None
        applied = await self._transact(compared, changes, leased, heirs)
        if applied and applied > self.revision:
            self.key, self.revision = own, applied
        return applied

    async def present(self, node: str, replica: ReplicaKey) -> bool:
        """Tells operators of this replica. Returns False if this has to be tried again."""
        key = f"{REPLICAS}{self._number}/{node}"
        return bool(await self._transact({}, {key: replica.value()}, {key}))

    async def serve(self, leader_revision: int, serving: ServingKey) -> bool:
        """Says where clients find the leader, if it still leads. Returns False if this has to be tried again."""
        changes: dict[str, Tree | None] = {self._serving: serving.value(), f"{UNSERVED}{self._number}": None}
        return bool(await self._transact({self._leader: leader_revision}, changes, {self._serving}))

    def peers(self, but: str) -> dict[str, str]:
        """Returns the addresses of the running replicas, by node, without the node `but`; as they were read last."""
        found = running_replicas(self._number, self._latest)
        return {node: key.address for node, key in found.items() if node != but and key.address}

    async def ask_successor(self, node: str) -> bool:
        """Asks, as a person may, that leadership is handed over to a node. False: something else is wanted, or has changed."""
        own = self.key
        if own is None or own.state.successor is not None or own.state.wanted is not None or own.state.split:
            return False
        changes: dict[str, Tree | None] = {self._shard: replace(own, state=own.state.to_be_led_by(node, "")).value()}
        return bool(await self._transact({self._shard: self._latest.revision_of(self._shard)}, changes, set()))

    async def say_left(self, left: LeftKey) -> None:
        """Tells operators why this leader ends, before its lease does; it does no harm if that fails."""
        await self._transact({}, {f"{LEFT}{self._number}": left.value()}, set())

    async def _transact(
        self,
        compared: Mapping[str, int],
        changes: dict[str, Tree | None],
        leased: set[str],
        others: Mapping[str, int] | None = None,
    ) -> int | None:
        try:
            return await self._registry.transact(compared, changes, lease=self._lease, leased=leased, others=others) or REFUSED
        except OutcomeUnknown:
            return None
        except (RegistryUnavailable, RegistryRefused):
            return REFUSED
