"""The layout and identity of a data folder, for every reader of one; `opening` is for the process that owns it.

Imports neither trio nor lmdb, so that programs that only read files (Spark's workers) can use it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from eventstore.chunks import documents
from eventstore.chunks.documents import Document
from eventstore.chunks.files import Files
from eventstore.chunks.folder import Ancestor, ChunkFolder
from eventstore.chunks.header import EVENTS
from eventstore.errors import Corrupt, FolderRefused, InvalidArgument
from eventstore.records.cluster_map import ALL_SLOTS, SlotRange, slots_of_text, slots_text
from eventstore.records.slots import ranges_of, slots_in
from eventstore.records.splits import SlotFilter, Split, layout_of, slot_filter, splits_of_text, splits_text
from eventstore.store.sorted.file_names import INDEX

FORMAT: Final = 2
"""The newest format of a store. Format 2 has commits of several aggregates."""
FIRST_FORMAT: Final = 1
STORE = "store.json"
EVENTS_FOLDER = "events"
ENDING = "events"
DIRECTORY = "directory"
ACCESS = "access.json"
"""Who may do what, which may be said before there is a store."""
CLUSTER = "cluster"
"""A folder in the data folder of a node, and the member of `store.json` that names the cluster."""
NODE = "node.json"
"""Only in the folder of a node whose shards have replicas elsewhere."""
REPLICA = "replica.json"
"""Only in the folder of a replica."""
START_NODE: Final = "`eventstore node --data FOLDER --name NAME --etcd URL --cluster CLUSTER`, as before"
"""The command that starts such a node, for people."""
BACKUP_VIEW: Final = "view-of-backup.json"
"""Only in a folder in which a backup is shown to readers."""
SHARD_FOLDER: Final = re.compile(r"shard-(0|[1-9][0-9]{0,3})")
"""The name of a shard's folder in a node's folder."""
SPLITS = "splits"
ANCESTORS = "ancestors"
BROKER = "broker"
"""The member of `store.json` of a shard whose broker existed before there was a cluster."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Which shard of which cluster a store is: the members of its `store.json` that a single store does not have.

    Attributes:
        splits: the splits that the shard took part in.
        ancestors: the stores whose event files its log begins with.
        broker: uuid and node of a broker that existed before there was a cluster; None: they follow from the shard.
        format: of the event files that a leader of replicas begins. Not a member: a folder may have a newer one.
    """

    cluster: uuid.UUID
    shard: int
    slots: tuple[SlotRange, ...]
    store: uuid.UUID
    splits: tuple[Split, ...] = ()
    ancestors: tuple[Ancestor, ...] = ()
    broker: tuple[uuid.UUID, int] | None = None
    format: int = FIRST_FORMAT

    @property
    def layout(self) -> int:
        """The layout by which it got its slots; 0 if it took part in no split."""
        return layout_of(self.splits, self.shard)

    @property
    def slot_filter(self) -> SlotFilter | None:
        """The part of its log that the shard hands out; None: everything."""
        return slot_filter(self.shard, self.slots, self.splits)

    def members(self) -> Document:
        members: Document = {CLUSTER: str(self.cluster), "shard": self.shard, "slots": slots_text(self.slots)}
        if self.splits:
            members[SPLITS] = splits_text(self.splits)
        if self.ancestors:
            members[ANCESTORS] = ancestors_text(self.ancestors)
        if self.broker is not None:
            members[BROKER] = broker_text(self.broker)
        return members

    def __str__(self) -> str:
        return f"store {self.store}, shard {self.shard} with slots {slots_text(self.slots)} of cluster {self.cluster}"


def as_split(shards: Sequence[ShardIdentity]) -> list[ShardIdentity]:
    """Returns these shards as they are now, as far as their folders say. If one says that it got slots of another, that counts
    even if the other's folder does not say so yet: a node notes a split in each folder by itself.
    """
    return [_without_given(each, [other for other in shards if other.cluster == each.cluster]) for each in shards]


def _without_given(shard: ShardIdentity, shards: Sequence[ShardIdentity]) -> ShardIdentity:
    known = {split for each in shards for split in each.splits}
    since = {split for split in known if split.parent == shard.shard}.difference(shard.splits)
    if not since:
        return shard
    heirs = {split.child for split in since}
    for split in sorted(known):  # shards that these gave slots on to
        heirs |= {split.child} if split.parent in heirs else set()
    theirs = {slot for each in shards if each.shard in heirs for slot in slots_in(each.slots)}
    slots = ranges_of(sorted(set(slots_in(shard.slots)) - theirs))
    return replace(shard, slots=slots, splits=tuple(sorted({*shard.splits, *since})))


def shard_of(path: Path, document: Document) -> ShardIdentity:
    """Returns the shard that the `store.json` of the store in `path` names.

    Raises:
        ValueError, InvalidArgument: it names none.
        Corrupt
    """
    return ShardIdentity(
        uuid.UUID(str(document.get(CLUSTER))),
        int(str(document.get("shard"))),
        slots_of_text(str(document.get("slots"))),
        uuid.UUID(str(document.get("store"))),
        splits_of_text(str(document.get(SPLITS, ""))),
        ancestors_of(path, document),
        broker_of(document.get(BROKER)),
    )


def check_shard(path: Path, document: Document, shard: ShardIdentity | None) -> bool:
    """Checks that the store in `path` may be opened as this shard, or as a store of its own if `shard` is None.

    Returns whether `store.json` is to be rewritten: it names no cluster yet, or slots that other shards have got since.

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
    if _was_split_since(document, shard):
        return True
    raise FolderRefused(
        str(path),
        f"holds {_named(document)}, expected was {shard}; put the folder of this shard back. Nothing was changed",
    )


def _was_split_since(document: Document, shard: ShardIdentity) -> bool:
    """Whether the document is the shard's own, from before it gave slots away. A shard never owns more slots than its folder
    says.
    """
    lasting = {name: value for name, value in shard.members().items() if name not in ("slots", SPLITS)}
    if not {"store": str(shard.store), **lasting}.items() <= document.items():
        return False
    try:
        had = slots_of_text(str(document.get("slots")))
    except InvalidArgument:
        return False
    return all(any(first <= low and high <= last for first, last in had) for low, high in shard.slots)


def refuse_node_folder(files: Files, path: Path) -> None:
    """Refuses a folder in which no store may be opened or created: a node's, whose shards are in folders below it, and a
    replica's.
    """
    if files.exists(path / CLUSTER) and not files.exists(path / STORE):
        raise FolderRefused(str(path), "is the folder of a cluster's node; start it with `eventstore node --data FOLDER`")
    if files.exists(path / NODE):
        why = "is the folder of a node of a cluster with replicas"
        why += f"; start it with {START_NODE}"
        raise FolderRefused(str(path), why)
    if files.exists(path / REPLICA):  # what is appended beside its leader is cut off, though it was acknowledged
        why = "is a replica of a shard; start its node, or copy its events with `eventstore cluster extract`"
        raise FolderRefused(str(path), why)


def _named(document: Document) -> str:
    store, cluster = document.get("store"), document.get(CLUSTER)
    if cluster is None:
        return f"store {store} of no cluster"
    return f"store {store}, shard {document.get('shard')} with slots {document.get('slots')} of cluster {cluster}"


def event_folder(
    files: Files, path: Path, identity: uuid.UUID, ancestors: tuple[Ancestor, ...] = (), format_: int = FIRST_FORMAT
) -> ChunkFolder:
    """Returns the event files of a store. `format_`: of those that are begun."""
    return ChunkFolder(files, path / EVENTS_FOLDER, EVENTS, ENDING, identity, (INDEX,), ancestors=ancestors, format=format_)


def with_format(document: Document, format_: int) -> Document:
    """Returns a `store.json` with this format, unless it has a newer one."""
    return {**document, "format": max(format_, format_of(document))}


def format_of(document: Document) -> int:
    """Returns the format that a `store.json`, which was read, says its event files are begun in."""
    return int(document["format"] or FIRST_FORMAT)


def read_event_folder(files: Files, path: Path) -> ChunkFolder:
    """Returns the event files of the store in `path`.

    Raises:
        FolderRefused: there is no store, or it has a newer format.
        Corrupt: its document is damaged, or its ancestors are not readable.
    """
    identity, document = read_store(files, path)
    return event_folder(files, path, identity, ancestors_of(path, document))


def ancestors_text(ancestors: Sequence[Ancestor]) -> str:
    """Returns ancestors as documents name them: `UUID:LAST FILE`, several with commas between them."""
    return ",".join(f"{each.store}:{each.through}" for each in ancestors)


def ancestors_of(path: Path, document: Document) -> tuple[Ancestor, ...]:
    """Returns the ancestors that a `store.json` names. Raises Corrupt."""
    text = document.get(ANCESTORS)
    if text is None:
        return ()
    try:
        pairs = [each.split(":") for each in str(text).split(",")]
        return tuple(Ancestor(uuid.UUID(store), int(through)) for store, through in pairs)
    except ValueError:
        raise Corrupt(str(path / STORE), 0, f"its ancestors are {text!r}, expected UUID:FILE,…") from None


def broker_text(broker: tuple[uuid.UUID, int] | None) -> str | None:
    """Returns the broker of a shard as documents name it: `UUID:NODE`."""
    return None if broker is None else f"{broker[0]}:{broker[1]}"


def broker_of(value: object) -> tuple[uuid.UUID, int] | None:
    """Reads what `broker_text` returned. Raises ValueError."""
    if value is None:
        return None
    store, _, node = str(value).partition(":")
    return uuid.UUID(store), int(node)


def read_identity(files: Files, path: Path) -> uuid.UUID:
    """Returns the uuid of the store in `path`.

    Raises:
        FolderRefused: there is no store, or it has a newer format.
    """
    return read_store(files, path)[0]


def read_store(files: Files, path: Path) -> tuple[uuid.UUID, Document]:
    """Returns the uuid of the store in `path`, and the whole document.

    Raises:
        FolderRefused: there is no store, or it has a newer format.
        Corrupt: the document is damaged.
    """
    try:
        return documents.read_identity(files, path / STORE, FORMAT)
    except (FileNotFoundError, NotADirectoryError):
        if files.exists(path / CLUSTER):
            why = "is the folder of a cluster's node; give that of a shard, such as shard-0 in it"
            raise FolderRefused(str(path), why) from None
        raise FolderRefused(str(path), "there is no store here (store.json is missing); give a data folder") from None


def shard_folders(node: Path) -> list[Path]:
    """Returns the folders of the shards in the folder of a node, by number, whatever is in them."""
    found = (each for each in node.iterdir() if SHARD_FOLDER.fullmatch(each.name))
    return sorted(found, key=lambda each: int(each.name.removeprefix("shard-")))
