"""The place of a server in a cluster: its shard, and the map it begins with. Most servers have none."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.records.cluster_map import ALL_SLOTS, ClusterMap
from eventstore.server.requests.dispatch import ConnectionSeat
from eventstore.server.requests.leadership import Leadership
from eventstore.server.requests.map_requests import MapRequests
from eventstore.server.requests.owned_slots import OwnedSlots
from eventstore.server.shard_layout import ServedLayout
from eventstore.store.data_folder import ShardIdentity


@dataclass(frozen=True, slots=True)
class ServedShard:
    """`shard`: None for a store of its own; `known` is then that of a single shard. `leadership`: of one with replicas."""

    shard: ShardIdentity | None
    known: ClusterMap
    leadership: Leadership | None = None

    @property
    def one_of_several(self) -> int | None:
        """The number of the shard, if there are others."""
        return None if self.shard is None or self.shard.slots == ALL_SLOTS else self.shard.shard

    def slots(self, maps: MapRequests) -> OwnedSlots | None:
        """Returns the slots to check; None if the store takes every aggregate."""
        if self.shard is None:
            return None
        return OwnedSlots(self.shard.slots, lambda: maps.current.version)

    def seat(self, maps: MapRequests, layout: ServedLayout) -> ConnectionSeat | None:
        """Returns what HELLO says about the cluster; None outside of one."""
        shard = self.shard
        if shard is None:
            return None
        cluster, number = shard.cluster.bytes, shard.shard
        return lambda: (cluster, maps.current.version, number, layout.number)
