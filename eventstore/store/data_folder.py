"""The layout and identity of a data folder, for every reader of one; `opening` is for the process that owns it.

Imports neither trio nor lmdb, so that programs that only read files (Spark's workers) can use it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from eventstore.chunks import documents
from eventstore.chunks.documents import Document
from eventstore.chunks.files import Files
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS
from eventstore.errors import FolderRefused
from eventstore.records.cluster_map import ALL_SLOTS, SlotRange, slots_text
from eventstore.store.sorted.file_names import INDEX

FORMAT = 1
STORE = "store.json"
EVENTS_FOLDER = "events"
ENDING = "events"
DIRECTORY = "directory"
CLUSTER = "cluster"
"""A folder in the data folder of a node, and the member of `store.json` that names the cluster."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Which shard of which cluster a store is; the members of its `store.json` besides those of every store."""

    cluster: uuid.UUID
    shard: int
    slots: tuple[SlotRange, ...]
    store: uuid.UUID

    def members(self) -> Document:
        return {CLUSTER: str(self.cluster), "shard": self.shard, "slots": slots_text(self.slots)}

    def __str__(self) -> str:
        return f"store {self.store}, shard {self.shard} with slots {slots_text(self.slots)} of cluster {self.cluster}"


def check_shard(path: Path, document: Document, shard: ShardIdentity | None) -> bool:
    """Checks that the store in `path` may be opened as this shard, or as a store of its own if `shard` is None.

    Returns whether `store.json` names no cluster yet, and has to.

    Raises:
        FolderRefused: names both what the folder holds and what was expected.
    """
    single = document.get(CLUSTER) is None
    if shard is None:
        if single or document.get("slots") == slots_text(ALL_SLOTS):
            return False
        raise FolderRefused(
            str(path),
            f"holds {_named(document)}, not a whole store; start its cluster with `eventstore node` and the folder above",
        )
    if single and document.get("store") == str(shard.store) and shard.slots == ALL_SLOTS:
        return True
    if {"store": str(shard.store), **shard.members()}.items() <= document.items():
        return False
    raise FolderRefused(
        str(path),
        f"holds {_named(document)}, expected was {shard}; put the folder of this shard back. Nothing was changed",
    )


def refuse_node_folder(files: Files, path: Path) -> None:
    """Refuses the folder of a node, whose shards are in folders below it, where a store is opened or would be created."""
    if files.exists(path / CLUSTER) and not files.exists(path / STORE):
        raise FolderRefused(str(path), "is the folder of a cluster's node; start it with `eventstore node --data`")


def _named(document: Document) -> str:
    store, cluster = document.get("store"), document.get(CLUSTER)
    if cluster is None:
        return f"store {store} of no cluster"
    return f"store {store}, shard {document.get('shard')} with slots {document.get('slots')} of cluster {cluster}"


def event_folder(files: Files, path: Path, identity: uuid.UUID) -> ChunkFolder:
    return ChunkFolder(files, path / EVENTS_FOLDER, EVENTS, ENDING, identity, (INDEX,))


def read_identity(files: Files, path: Path) -> uuid.UUID:
    """Returns the uuid of the store in `path`.

    Raises:
        FolderRefused: there is no store, or it has a newer format.
    """
    try:
        return documents.read_identity(files, path / STORE, FORMAT)[0]
    except (FileNotFoundError, NotADirectoryError):
        if files.exists(path / CLUSTER):
            why = "is the folder of a cluster's node; give that of a shard, such as shard-0 in it"
            raise FolderRefused(str(path), why) from None
        raise FolderRefused(str(path), "there is no store here (store.json is missing); give a data folder") from None
