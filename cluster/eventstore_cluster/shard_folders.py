"""The shards of a node and their folders: found, checked against what the folders say of themselves, or newly planned.

    cluster/         the registry
    shard-0/ …       the stores; the folder of a single store is its own shard 0, in place

Nothing is written before everything was checked: a folder that is not what it should be is refused by the names of both sides.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import Document, Tree, read_identity
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.fields import counted
from eventstore.records.cluster_map import (
    ALL_SLOTS,
    SHARDS_MAX,
    ClusterMap,
    Shard,
    even_slots,
    owners_of,
    read_slots,
)
from eventstore.store.data_folder import (
    CLUSTER,
    FORMAT,
    NODE,
    SHARD_FOLDER,
    STORE,
    ShardIdentity,
    as_split,
    check_shard,
    shard_of,
)
from eventstore_cluster.registry.document import DOCUMENT, NEXT_STEP, read_registry, unusable
from eventstore_cluster.registry.registry import Changes, RegistrySnapshot

CLUSTER_KEY: Final = "cluster"
LEADER_KEYS: Final = "leader/"
SHARD_KEYS: Final = "shard/"
LOCK: Final = "lock"
NODE_FILE: Final = NODE


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard and its folder.

    Attributes:
        created: its store was opened once, so that it must be there from then on.
    """

    identity: ShardIdentity
    folder: Path
    created: bool

    def value(self) -> Tree:
        """Returns what the registry keeps about it."""
        return {
            "uuid": self.identity.store.hex,
            "slots": [list(pair) for pair in self.identity.slots],
            "folder": "" if self.identity.slots == ALL_SLOTS else self.folder.name,
            "created": self.created,
        }


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """All shards of a cluster.

    Attributes:
        number: grows when slots change hands.
    """

    cluster: uuid.UUID
    number: int
    shards: tuple[PlannedShard, ...]

    def changes(self) -> Changes:
        """Returns the keys of a new registry."""
        first: dict[str, Tree | None] = {CLUSTER_KEY: {"uuid": self.cluster.hex, "layout": self.number}}
        return first | {f"{SHARD_KEYS}{each.identity.shard}": each.value() for each in self.shards}


def plan(data: Path, shards: int | None, files: Files | None = None) -> ShardLayout:
    """Returns the shards of the folder, as its stores and its registry say, or the shards of a new one. Writes nothing.

    `shards`: how many there must be; None: as many as there are, one in a new folder.

    Raises:
        FolderRefused, Corrupt: a folder is missing, foreign, or of another shard; the numbers differ.
        InvalidArgument: `shards` is out of range.
    """
    files = files or OsFiles()
    if shards is not None and not 1 <= shards <= SHARDS_MAX:
        raise InvalidArgument(
            f"shards is {shards}, allowed are 1 to {SHARDS_MAX}", field="shards", limit=SHARDS_MAX, value=shards
        )
    registry = read_registry(data / CLUSTER, files)
    names = files.names(data) if files.exists(data) else []
    found = layout_of(data, registry) if registry is not None else _found(files, data, names)
    if found is not None and shards is not None and _is_unused(files, found):
        found = found if shards == len(found.shards) else None  # an earlier start failed: it does not bind the next one
    if found is None:
        _refuse_foreign(data, names)
        return _new(data, shards or 1)
    if shards is not None and shards != len(found.shards):
        has = len(found.shards)
        raise FolderRefused(
            str(data),
            f"has {counted(has, 'shard')}, --shards asks for {shards}; start it with --shards {has}, or without. Nothing "
            "was changed. Shards are split in a cluster with a registry: eventstore cluster adopt, then split",
        )
    for each in found.shards:
        _check_known(each, data, registry, files)
    _refuse_others(data, names, found, files)
    return found


def _refuse_others(data: Path, names: Sequence[str], layout: ShardLayout, files: Files) -> None:
    """Refuses a shard of another cluster in this folder. A shard of this cluster that the layout does not name may be there:
    adopting begins with it.
    """
    known = {each.folder for each in layout.shards}
    for name in names:
        if not SHARD_FOLDER.fullmatch(name) or data / name in known or (document := _document(files, data / name)) is None:
            continue
        other = document.get(CLUSTER)
        if other != str(layout.cluster):
            whose = "no cluster" if other is None else f"cluster {other}"
            raise FolderRefused(
                str(data / name),
                f"holds store {document.get('store')} of {whose}, beside the shards of cluster {layout.cluster}; move it away",
            )


def _check_known(shard: PlannedShard, data: Path, registry: RegistrySnapshot | None, files: Files) -> None:
    """Checks a shard's folder, as `check_folder` does. If the registry says what the shard is, the error says that the registry
    may be wrong as well.

    Raises:
        FolderRefused
    """
    try:
        check_folder(shard, files)
    except FolderRefused as error:
        if registry is None or _document(files, shard.folder) is None:
            raise
        raise FolderRefused(
            str(shard.folder),
            f"{error.fields['why']}. That is what {data / CLUSTER / DOCUMENT} says, and either may be wrong; if it is this, "
            + NEXT_STEP,
        ) from None


def layout_of(data: Path, registry: RegistrySnapshot) -> ShardLayout:
    """Returns the shards that a registry names.

    Raises:
        FolderRefused: it is not whole.
    """
    try:
        head = registry.value(CLUSTER_KEY) or {}
        cluster = uuid.UUID(str(head.get("uuid")))
        shards = [
            _planned(data, cluster, int(key.removeprefix(SHARD_KEYS)), entry.value)
            for key, entry in registry.entries.items()
            if key.startswith(SHARD_KEYS)
        ]
        return _whole(cluster, int(str(head.get("layout"))), shards)
    except (ValueError, InvalidArgument) as error:
        raise unusable(data / CLUSTER / DOCUMENT, f"not the shards of a cluster: {error}") from None


def _whole(cluster: uuid.UUID, number: int, shards: list[PlannedShard]) -> ShardLayout:
    """Returns the layout of these shards. Raises InvalidArgument: a slot has two owners or none."""
    shards.sort(key=lambda each: each.identity.shard)
    owners_of({each.identity.shard: each.identity.slots for each in shards})
    return ShardLayout(cluster, number, tuple(shards))


def map_of(registry: RegistrySnapshot, layout: ShardLayout) -> ClusterMap:
    """Returns the map of the cluster at this revision."""
    shards = []
    for each in layout.shards:
        leader = registry.value(f"{LEADER_KEYS}{each.identity.shard}") or {}
        address, epoch = leader.get("address"), leader.get("epoch")
        shards.append(
            Shard(
                each.identity.shard,
                each.identity.store.bytes,
                each.identity.slots,
                None if address is None else str(address),
                epoch if isinstance(epoch, int) else 1,
            )
        )
    return ClusterMap(layout.cluster.bytes, registry.revision, layout.number, tuple(shards))


def _planned(data: Path, cluster: uuid.UUID, shard: int, value: Tree) -> PlannedShard:
    slots, folder = value.get("slots"), value.get("folder")
    if not isinstance(slots, list) or not isinstance(folder, str) or not (folder == "" or SHARD_FOLDER.fullmatch(folder)):
        raise ValueError(f"shard {shard} has no slots or no folder")
    identity = ShardIdentity(cluster, shard, read_slots(slots), uuid.UUID(str(value.get("uuid"))))
    return PlannedShard(identity, data / folder, value.get("created") is True)


def _new(data: Path, shards: int) -> ShardLayout:
    """Returns the layout of a new cluster. If it has one shard, its uuid is the store's, so that a position is the same in
    both.
    """
    cluster = uuid.uuid4()
    stores = [cluster] if shards == 1 else [uuid.uuid4() for _ in range(shards)]
    identities = [
        ShardIdentity(cluster, number, *each) for number, each in enumerate(zip(even_slots(shards), stores, strict=True))
    ]
    return ShardLayout(cluster, 1, tuple(PlannedShard(each, _folder(data, each.shard, shards), False) for each in identities))


def _folder(data: Path, shard: int, shards: int) -> Path:
    """Returns the folder of a shard. A single shard is the store of the folder itself, so that `serve` can open it as well."""
    return data if shards == 1 else data / f"shard-{shard}"


def _found(files: Files, data: Path, names: Sequence[str]) -> ShardLayout | None:
    """Returns the shards in a folder without a registry: a single store, which gives its uuid to the cluster, or the shards of
    a cluster that lost its registry. None if there are none.
    """
    folders = [data] if STORE in names else [data / name for name in names if SHARD_FOLDER.fullmatch(name)]
    documents = [(folder, _document(files, folder)) for folder in folders]
    known = [(folder, document) for folder, document in documents if document is not None]
    if not known:
        return None
    if len(known) == 1 and known[0][1].get(CLUSTER) is None and known[0][0] == data:
        store = uuid.UUID(str(known[0][1]["store"]))
        return ShardLayout(store, 1, (PlannedShard(ShardIdentity(store, 0, ALL_SLOTS, store), data, True),))
    return _rebuilt(data, known)


def _rebuilt(data: Path, known: Sequence[tuple[Path, Document]]) -> ShardLayout:
    """Returns the shards as their own documents name them."""
    clusters = {str(document.get(CLUSTER)) for _, document in known}
    if len(clusters) != 1:
        raise FolderRefused(
            str(data), f"holds shards of different clusters: {', '.join(sorted(clusters))}; move those of the other one away"
        )
    try:
        cluster = uuid.UUID(clusters.pop())
        identities = as_split([shard_of(folder, each) for folder, each in known])
        shards = [PlannedShard(each, folder, True) for each, (folder, _) in zip(identities, known, strict=True)]
        return _whole(cluster, 1, shards)
    except (KeyError, ValueError, InvalidArgument) as error:
        raise FolderRefused(
            str(data),
            f"has no registry ({CLUSTER}/registry.json), and its shards are not a whole cluster: {error}; "
            "restore the folders that are missing, or look again if a shard was split just now. Nothing was changed",
        ) from None


def _document(files: Files, folder: Path) -> Document | None:
    try:
        return read_identity(files, folder / STORE, FORMAT)[1]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_unused(files: Files, layout: ShardLayout) -> bool:
    return not any(each.created or _document(files, each.folder) is not None for each in layout.shards)


def check_folder(shard: PlannedShard, files: Files | None = None) -> None:
    """Checks that the folder holds this shard, or nothing if it was never created.

    Raises:
        FolderRefused: it names both sides.
    """
    files = files or OsFiles()
    document = _document(files, shard.folder)
    if document is not None:
        check_shard(shard.folder, document, shard.identity)
    elif shard.created:
        raise FolderRefused(str(shard.folder), f"is missing, or has no store.json; expected was {shard.identity}; restore it")


def _refuse_foreign(data: Path, names: Sequence[str]) -> None:
    for name in names:
        if name not in (CLUSTER, LOCK) and not SHARD_FOLDER.fullmatch(name):
            raise FolderRefused(str(data), f"holds {name}, which is not of a cluster; choose an empty folder")
