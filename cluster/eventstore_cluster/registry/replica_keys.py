"""What the process of a replica says of itself in the registry, under its lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue as Value
from eventstore.chunks.documents import Tree
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.replica.places import LogEnds, Reach

REPLICAS: Final = "replica/"
EARLIER_MAX: Final = 64
"""Of the incarnations that a replica names: so many starts may follow the last start that the registry was told of."""
_FAILED_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class CloneKey:
    """How far a clone is.

    Attributes:
        files: the last event file that it has.
        failed: why it has no more of them.
        lease: of its process, under which it may be made the leader; 0 if an older program wrote the key.
    """

    files: int
    failed: str = ""
    lease: int = 0

    def value(self) -> Tree:
        return {"cloned": self.files, "failed": self.failed[:_FAILED_CHARACTERS_MAX], "lease": str(self.lease)}


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """What the process of a replica says of itself.

    Attributes:
        epoch: the largest in the logs.
        ends: how each log ended when the process started.
        reach: the last epoch of each log, and where it ends; empty if an older program wrote the key.
        led: the last epoch of the documents was led from this folder.
        earlier: the latest of the incarnations that the folder had before.
        clone: of a shard in preparation.
        address: HOST:PORT for the other replicas.
    """

    incarnation: str
    run: str
    epoch: int
    ends: LogEnds
    reach: Reach = ()
    led: bool = False
    earlier: tuple[str, ...] = ()
    clone: CloneKey | None = None
    address: str = ""

    def value(self) -> Tree:
        clone: Tree = {} if self.clone is None else self.clone.value()
        ends: list[Value] = [list(end) for end in self.ends]
        reach: list[Value] = [list(each) for each in self.reach]
        return {
            "incarnation": self.incarnation,
            "run": self.run,
            "epoch": self.epoch,
            "ends": ends,
            "reach": reach,
            "led": self.led,
            "earlier": list(self.earlier),
            "address": self.address,
            **clone,
        }


def read_replica(value: Tree | None) -> ReplicaKey | None:
    reach: Any
    earlier: Any
    match value:
        case {"incarnation": str(incarnation), "run": str(run), "epoch": int(epoch), "ends": list(ends), **rest}:
            found: Any = ends
            reach, earlier = rest.get("reach", []), rest.get("earlier", [])
            return ReplicaKey(
                incarnation,
                run,
                epoch,
                tuple((int(chunk), int(offset)) for chunk, offset in found),
                tuple((int(last), int(chunk), int(offset)) for last, chunk, offset in reach),
                rest.get("led") is True,
                tuple(map(str, earlier)),
                _read_clone(rest),
                str(rest.get("address", "")),
            )
    return None


def _read_clone(found: Any) -> CloneKey | None:
    match found:
        case {"cloned": int(files), **rest}:
            lease = str(rest.get("lease", ""))
            return CloneKey(files, str(rest.get("failed", "")), int(lease) if lease.isdecimal() else 0)
    return None


def running_replicas(number: int, snapshot: RegistrySnapshot) -> dict[str, ReplicaKey]:
    """Returns the replicas of the shard whose processes run, by node."""
    prefix = f"{REPLICAS}{number}/"
    found = {
        name.removeprefix(prefix): read_replica(each.value)
        for name, each in snapshot.entries.items()
        if name.startswith(prefix)
    }
    return {name: key for name, key in found.items() if key is not None}


def works(number: int, node: str, snapshot: RegistrySnapshot) -> bool:
    """Whether the replica's process runs and has come further than its start. A clone without files has not: it may end as the
    process before it did.
    """
    key = read_replica(snapshot.value(f"{REPLICAS}{number}/{node}"))
    return key is not None and (key.clone is None or key.clone.files > 0)
