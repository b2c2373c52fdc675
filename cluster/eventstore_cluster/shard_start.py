"""The first message to the process of a shard: its settings, which shard it is, and the map of the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from eventstore.chunks.documents import Tree
from eventstore.records.cluster_map import ClusterMap, read_cluster_map, slots_of_text, slots_text
from eventstore.settings.server import ServerSettings, server_settings
from eventstore.store.data_folder import ShardIdentity


@dataclass(frozen=True, slots=True)
class ShardStart:
    """`values`: all settings as an operator writes them, by their names."""

    values: Mapping[str, object]
    identity: ShardIdentity
    known: ClusterMap

    def message(self) -> Tree:
        identity = self.identity
        return {
            "settings": {name: plain(value) for name, value in self.values.items()},
            "cluster": identity.cluster.hex,
            "shard": identity.shard,
            "slots": slots_text(identity.slots),
            "store": identity.store.hex,
            "map": self.known.encode().decode(),
        }

    def settings(self) -> ServerSettings:
        """Returns the settings of the shard's server. Raises InvalidArgument."""
        return server_settings(self.values)


def read_start(message: Tree) -> ShardStart:
    """Returns what `ShardStart.message` encoded. Raises ValueError or InvalidArgument: it is something else."""
    match message:
        case {
            "settings": dict(values), "cluster": str(cluster), "shard": int(shard), "slots": str(slots), "store": str(store),
            "map": str(known),
        }:  # fmt: skip
            identity = ShardIdentity(uuid.UUID(cluster), shard, slots_of_text(slots), uuid.UUID(store))
            return ShardStart(values, identity, read_cluster_map(known.encode()))
    raise ValueError("not the first message to a shard")


def plain(value: object) -> str | int | float | bool | None:
    """Returns a value as JSON can hold it."""
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
