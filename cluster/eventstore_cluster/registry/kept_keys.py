"""The lasting keys of a registry as a node keeps them in its folder, and offers them to an etcd that has lost its cluster.

`kept.json` in the folder of a node is a copy of `cluster` and of all `shard/N`, replaced whenever one of them has changed. It
may be older than the registry was: it says which shards and replicas there are, never which replica has everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue, Tree, unknown_members
from eventstore.errors import Corrupt, FolderRefused
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import SHARDS, ClusterKey, ShardKey, read_cluster, read_shard
from eventstore_cluster.replica.registry_state import Known

KEPT: Final = "kept.json"
OFFERS: Final = "offer/"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class KeptShard:
    """A shard's key as a node kept it.

    Attributes:
        revision: of the registry, which wrote the key.
    """

    revision: int
    key: ShardKey

    @property
    def age(self) -> tuple[int, int]:
        """Orders copies: the newest has the largest age. Revisions begin again with each rebuilt generation, so the generation
        comes first.
        """
        return self.key.state.generation, self.revision

    def known(self) -> Known:
        return Known(self.key.state.generation, self.revision, self.key.state.nonce)

    def newest(self, earlier: KeptShard | None) -> KeptShard:
        """Returns this one, or `earlier` if this one does not descend from it."""
        later = earlier is not None and earlier.known().is_later_than(self.key.state, self.revision)
        return earlier if earlier is not None and later else self

    def value(self) -> Tree:
        return {**self.key.value(), "revision": self.revision}


@dataclass(frozen=True, slots=True)
class Kept:
    """What the registry said of a cluster.

    Attributes:
        unknown: members of the document that a newer program has written.
    """

    cluster: ClusterKey
    shards: Mapping[int, KeptShard]
    unknown: Tree = field(default_factory=dict)

    def value(self) -> Tree:
        shards: dict[str, DocumentValue] = {str(number): each.value() for number, each in self.shards.items()}
        return {**self.unknown, "format": _FORMAT, "cluster": self.cluster.value(), "shards": shards}

    def newest(self, earlier: Kept | None) -> Kept:
        """Returns this one, with the earlier copy of each shard that is later there or unknown to the registry. The registry
        may have been restored from an older copy, from before a split.
        """
        if earlier is None or earlier.cluster.uuid != self.cluster.uuid:
            return self
        shards = {number: each.newest(earlier.shards.get(number)) for number, each in self.shards.items()}
        cluster = max(self.cluster, earlier.cluster, key=lambda key: (key.layout, key.next_shard))
        return Kept(cluster, {**earlier.shards, **shards}, earlier.unknown)

    def unknown_to(self, shards: Collection[int]) -> str | None:
        """Returns what is wrong if a registry lacks some of the kept shards; None if it has all. Shards are never taken
        away.
        """
        if not (lacking := sorted(set(self.shards).difference(shards))):
            return None
        return (
            f"etcd does not know shard {', '.join(map(str, lacking))}, which this node does: it was restored from an older "
            "copy, of before a split. Restore a later one; if there is none, start all nodes on an empty etcd, and rebuild it "
            "with `eventstore cluster rebuild`"
        )

    def of(self, node: str) -> Kept:
        """Returns a copy with only the shards of which this node has a replica."""
        return Kept(self.cluster, {number: each for number, each in self.shards.items() if node in each.key.state.replicas})


def kept_of(cluster: ClusterKey, shards: Mapping[int, ShardKey], seen: RegistrySnapshot) -> Kept:
    return Kept(cluster, {number: KeptShard(seen.revision_of(f"{SHARDS}{number}"), key) for number, key in shards.items()})


def read_kept(path: str, document: Tree) -> Kept:
    """Returns what a document holds.

    Raises:
        FolderRefused: it is of a newer format.
        UnsupportedVersion: the keys are.
        Corrupt
    """
    if document.get("format") != _FORMAT:
        raise FolderRefused(path, f"format {document.get('format')}; this program knows format {_FORMAT}. Use a newer one")
    match document:
        case {"cluster": dict(cluster), "shards": dict(shards)}:
            unknown = unknown_members(document, ("format", "cluster", "shards"))
            return Kept(read_cluster(cluster), dict(_shards(path, shards)), unknown)
    raise Corrupt(path, 0, "not the keys of a cluster; remove it: it is written again when the registry has the cluster")


def _shards(path: str, shards: Mapping[str, object]) -> Iterator[tuple[int, KeptShard]]:
    for number, value in shards.items():
        match value:
            case {"revision": int(revision)} if number.isdecimal():
                found: Any = value
                yield int(number), KeptShard(revision, read_shard(int(number), unknown_members(found, ("revision",))))
            case _:
                raise Corrupt(path, 0, f"{number} is not a shard that was in the registry")


def offer_keys(node: str, kept: Kept) -> dict[str, Tree]:
    """Returns the keys by which a node offers what it kept of its own shards. The last key completes the offer: without it the
    others do not count.
    """
    own = kept.of(node)
    shards = {f"{OFFERS}{node}/{number}": each.value() for number, each in own.shards.items()}
    return {**shards, f"{OFFERS}{node}": {**kept.cluster.value(), "shards": len(shards)}}


def own_offers(node: str, seen: RegistrySnapshot) -> dict[str, Tree]:
    """Returns the keys of the node's offer that are in the registry."""
    return {
        key: entry.value
        for key, entry in seen.entries.items()
        if key == f"{OFFERS}{node}" or key.startswith(f"{OFFERS}{node}/")
    }


def read_offers(seen: RegistrySnapshot) -> dict[str, Kept]:
    """Returns what nodes offer, by their names. Leaves out an offer that is not complete yet.

    Raises:
        UnsupportedVersion: the keys are of a newer format.
        Corrupt
    """
    heads = [key.removeprefix(OFFERS) for key in seen.entries if key.startswith(OFFERS) and "/" not in key[len(OFFERS) :]]
    found: dict[str, Kept] = {}
    for node in sorted(heads):
        key = f"{OFFERS}{node}"
        head, prefix = seen.entries[key].value, f"{key}/"
        parts = {each.removeprefix(prefix): entry.value for each, entry in seen.entries.items() if each.startswith(prefix)}
        if len(parts) == head.get("shards"):
            found[node] = Kept(read_cluster(unknown_members(head, ("shards",))), dict(_shards(key, parts)))
    return found
