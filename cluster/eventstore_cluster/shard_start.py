"""The first message to the process of a shard: its settings, which shard it is, and the map of the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from eventstore.chunks.documents import Tree
from eventstore.records.cluster_map import ClusterMap, read_cluster_map, read_slots
from eventstore.server.access.security import access_path
from eventstore.settings.server import ServerSettings, server_settings
from eventstore.store.data_folder import ShardIdentity, broker_text
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.lineage import read_lineage
from eventstore_cluster.replica.registry_state import Known

PORTS_BELOW: Final = 10
"""The first shard of a node listens this much above the address of the node."""


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """What a process needs to be a replica of its shard.

    Attributes:
        registry: the name of the cluster in etcd.
        node: the name of its node.
        peers: HOST:PORT where the other replicas reach it.
        sit_out: it leads only if no other replica does for the time of a lease.
        host: by which clients and replicas on other machines reach this one; empty: by the addresses it listens on.
        known: what the node has heard of the shard last.
        parent: the shard that it is split off from, on the same node.
    """

    registry: str
    etcd: EtcdOptions
    node: str
    peers: str
    lease_s: int = 5
    sit_out: bool = False
    host: str = ""
    known: Known | None = None
    parent: int | None = None

    def value(self) -> Tree:
        etcd: Tree = {**asdict(self.etcd), "endpoints": list(self.etcd.endpoints)}
        return {
            "registry": self.registry,
            "etcd": etcd,
            "node": self.node,
            "peers": self.peers,
            "lease_s": self.lease_s,
            "sit_out": self.sit_out,
            "host": self.host,
            "known": None if self.known is None else asdict(self.known),
            "parent": self.parent,
        }


@dataclass(frozen=True, slots=True)
class ShardStart:
    """The first message to the process of a shard.

    Attributes:
        values: all settings as an operator writes them, by their names.
        replica: None if the shard has no replicas.
    """

    values: Mapping[str, object]
    identity: ShardIdentity
    known: ClusterMap
    replica: ReplicaStart | None = None

    def message(self) -> Tree:
        identity = self.identity
        return {
            "settings": {name: plain(value) for name, value in self.values.items()},
            "cluster": identity.cluster.hex,
            "shard": identity.shard,
            "slots": [list(pair) for pair in identity.slots],
            "splits": [list(split) for split in identity.splits],
            "ancestors": [[each.store.hex, each.through] for each in identity.ancestors],
            "broker": broker_text(identity.broker),
            "store": identity.store.hex,
            "map": self.known.encode().decode(),
            "replica": None if self.replica is None else self.replica.value(),
        }

    def settings(self) -> ServerSettings:
        """Returns the settings of the shard's server. Raises InvalidArgument."""
        return server_settings(self.values)


def shard_values(settings: ServerSettings, values: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Returns the settings of a shard: the settings of its node, with a folder of its own, no HTTP, and the node's list of
    access.
    """
    access = access_path(settings)
    named = str(access) if access.exists() else None
    return {**values, "data": str(folder), "http": None, "http_api": False, "access_file": named}


def read_start(message: Tree) -> ShardStart:
    """Returns what `ShardStart.message` encoded. Raises ValueError or InvalidArgument: it is something else."""
    match message:
        case {
            "settings": dict(values),
            "cluster": str(cluster),
            "shard": int(shard),
            "slots": list(slots),
            "store": str(store),
            "map": str(known),
        }:
            lineage = read_lineage(message)
            identity = ShardIdentity(
                uuid.UUID(cluster),
                shard,
                read_slots(slots),
                uuid.UUID(store),
                lineage.splits,
                lineage.ancestors,
                lineage.broker,
            )
            return ShardStart(values, identity, read_cluster_map(known.encode()), _replica(message.get("replica")))
    raise ValueError("not the first message to a shard")


def _replica(value: object) -> ReplicaStart | None:
    match value:
        case {"etcd": dict(etcd), "known": known, **rest}:
            options: Any = {**etcd, "endpoints": tuple(etcd["endpoints"])}
            heard: Any = known
            given: Any = rest
            return ReplicaStart(etcd=EtcdOptions(**options), known=None if heard is None else Known(**heard), **given)
    return None


def plain(value: object) -> str | int | float | bool | None:
    """Returns a value as JSON can hold it."""
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
