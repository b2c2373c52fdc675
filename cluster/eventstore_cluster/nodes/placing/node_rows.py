"""The nodes of a cluster, and what each of them keeps."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore_cluster.nodes.cluster_view import nodes_of
from eventstore_cluster.nodes.placing.fleet import Fleet, Loads
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.registry import RegistrySnapshot


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node, as the command line shows it.

    Attributes:
        state: runs, is drained, or does not run; then `address`, `zone` and `version` are empty.
        size: bytes of the logs it keeps, as far as their leaders say it.
        free_bytes: on its disk, without what is on its way there; None if that is not known.
        failing: the shards whose replicas cannot run there.
    """

    node: str
    state: str
    address: str
    zone: str
    version: str
    replicas: int
    leaders: int
    size: int
    free_bytes: int | None
    failing: tuple[int, ...]


def node_rows(seen: RegistrySnapshot, fleet: Fleet) -> list[NodeRow]:
    """Returns the nodes by name: all that run, are drained, or are to keep replicas."""
    keys, loads = nodes_of(seen), Loads(fleet)
    led, rows = loads.led(), list[NodeRow]()
    for name, node in fleet.nodes.items():
        key = keys.get(name, NodeKey("", "", ""))
        state = "does not run" if name not in keys else "is drained" if node.leaves else "runs"
        size, _, replicas = loads.amounts(name)
        failing = tuple(each.shard for each in key.failing)
        rows.append(
            NodeRow(
                name, state, key.address, key.zone, key.version, int(replicas), led[name], int(size), node.free_bytes, failing
            )
        )
    return rows
