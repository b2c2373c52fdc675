"""How far the clones of shards in preparation are."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.fields import counted
from eventstore_cluster.registry.failing import utc_text
from eventstore_cluster.registry.node_keys import NODES, read_node
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replica_keys import running_replicas
from eventstore_cluster.registry.replicated_keys import SHARDS, read_shard


@dataclass(frozen=True, slots=True)
class Preparing:
    """The clone on `node` of a shard that is to be split off `parent`.

    Attributes:
        files: how many event files it has; None: it has not begun.
        failed: why it is stuck.
    """

    shard: int
    parent: int
    node: str
    files: int | None
    failed: str

    @property
    def text(self) -> str:
        if self.files is None:
            return f"has not begun{f', and {self.failed}' if self.failed else ''}"
        return f"has {counted(self.files, 'event file')}" + (f", and is stuck: {self.failed}" if self.failed else "")


def _cannot_run(number: int, node: str, seen: RegistrySnapshot) -> str:
    value = seen.value(f"{NODES}{node}")
    failing = () if value is None else read_node(node, value).failing
    return next((f"cannot run since {utc_text(each.since)}: {each.why}" for each in failing if each.shard == number), "")


def preparing_of(seen: RegistrySnapshot) -> list[Preparing]:
    """Returns the clones of all shards in preparation. Raises Corrupt."""
    found = []
    numbers = sorted(int(key.removeprefix(SHARDS)) for key in seen.entries if key.startswith(SHARDS))
    for number in numbers:
        key = read_shard(number, seen.entries[f"{SHARDS}{number}"].value)
        if key.slots or key.lineage.birth is None:
            continue
        running = running_replicas(number, seen)
        for node in key.state.replicas:
            clone = running[node].clone if node in running else None
            files, failed = (None, _cannot_run(number, node, seen)) if clone is None else (clone.files, clone.failed)
            found.append(Preparing(number, key.lineage.birth.parent, node, files, failed))
    return found
