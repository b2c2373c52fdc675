"""Resolves paths and globs to the data folders that a query reads, each once. The folder of a cluster's node stands for the
folders of its shards, which must all be there.

A folder matched by a glob counts once it holds a store, so a folder that is still being created is picked up later. A folder
given by name must hold a store. When a shard is split, its folder may say so a moment before the new shard's folder holds a
store: that is waited for.
"""

from __future__ import annotations

import glob
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Final
from urllib.parse import unquote, urlsplit

from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import Ancestor, ChunkFolder
from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.records.slots import slot_of
from eventstore.store.data_folder import (
    CLUSTER,
    STORE,
    ShardIdentity,
    ancestors_of,
    as_split,
    event_folder,
    read_store,
    shard_folders,
    shard_of,
)

_LOOKS: Final = 20
_AGAIN_S: Final = 0.1
"""The folders of a shard and of its parent usually differ for no longer."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A data folder and the uuid of the store in it.

    Attributes:
        shard: which shard it is, in a cluster of several.
        ancestors: the stores whose event files it begins with.
    """

    path: str
    store: str
    shard: ShardIdentity | None = None
    ancestors: tuple[Ancestor, ...] = ()

    @property
    def folder(self) -> ChunkFolder:
        return event_folder(OsFiles(), Path(self.path), uuid.UUID(self.store), self.ancestors)

    def may_hold(self, aggregate_ids: Iterable[bytes]) -> bool:
        """Returns whether any of these aggregates belongs here, by its slot. Reserved ids may be in any shard."""
        if self.shard is None:
            return True
        slots = (slot_of(each.decode()) for each in aggregate_ids)
        return any(slot < 0 or any(first <= slot <= last for first, last in self.shard.slots) for slot in slots)


class _Unfinished(FolderRefused):
    """Not all folders of a node's shards hold a store yet."""


def find_data_folders(paths: Iterable[str]) -> list[DataFolder]:
    """Returns the data folders at `paths`, in the order of their paths. Waits up to two seconds for the folder of a new shard
    that is not finished.

    Raises:
        InvalidArgument: a path names a file system that is not mounted.
        FolderRefused, Corrupt: a folder holds no store, one of a newer format, or the same store as another folder; a shard of
            a node is missing, or another one.
    """
    named = list(paths)
    for _ in range(_LOOKS - 1):
        try:
            found = _look(named)
        except _Unfinished:
            pass
        else:
            if not _is_awaited(named, found):
                return found
        sleep(_AGAIN_S)
    try:
        return _look(named)
    except _Unfinished as error:
        raise FolderRefused(str(error.fields["path"]), str(error.fields["why"])) from None


def _is_awaited(paths: Sequence[str], found: Sequence[DataFolder]) -> bool:
    """Returns whether a glob matches the folder of a shard that was split off from one of these shards and is not found yet."""
    shards = [each.shard for each in found if each.shard is not None]
    here = {(each.cluster, each.shard) for each in shards}
    missing = {f"shard-{split.child}" for each in shards for split in each.splits if (each.cluster, split.child) not in here}
    known = {each.path for each in found}
    globs = [local for local in map(local_path, paths) if missing and _is_glob(local)]
    matches = {os.path.abspath(match) for each in globs for match in glob.glob(each)}
    return any(os.path.basename(match) in missing for match in matches - known)


def _look(paths: Iterable[str]) -> list[DataFolder]:
    folders: set[str] = set()
    for path in paths:
        local = local_path(path)
        if _is_glob(local):
            folders.update(_matching(local))
        else:
            folders.add(os.path.abspath(local))
    found: dict[str, DataFolder] = {}
    of_nodes: set[str] = set()
    for folder in sorted(folders):
        shards = _shards(folder)
        of_nodes.update(each.path for each in shards)
        found.update((each.path, each) for each in shards or [_data_folder(folder)])  # a shard of a node may be named as well
    _refuse_copies(list(found.values()))
    split = {shard.store: shard for shard in as_split([each.shard for each in found.values() if each.shard]) if shard.splits}
    return [_now(found[path], split, of_node=path in of_nodes) for path in sorted(found)]


def _now(data_folder: DataFolder, split: Mapping[uuid.UUID, ShardIdentity], *, of_node: bool) -> DataFolder:
    """Returns the folder with what its shard is now. A shard that took part in no split counts as a store by itself, unless its
    node is read.
    """
    shard = data_folder.shard
    if shard is None or (of_node and shard.store not in split):
        return data_folder
    return replace(data_folder, shard=split.get(shard.store))


def local_path(path: str) -> str:
    """Returns the path as the operating system understands it.

    Raises:
        InvalidArgument: the path is on HDFS, S3 or the like.
    """
    if not _SCHEME.match(path):
        return path
    parts = urlsplit(path)
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise InvalidArgument(
            f"{path}: event files are read as local files, not through {parts.scheme}:; mount the folder on every worker under "
            "the same path, or copy it there",
            field="path",
            value=path,
        )
    return unquote(parts.path)


def _is_glob(path: str) -> bool:
    return glob.has_magic(path) and not os.path.exists(path)


def _matching(pattern: str) -> list[str]:
    found = [os.path.abspath(path) for path in glob.glob(pattern)]
    stores = [path for path in found if _holds(path, STORE) or _holds_shards(path)]
    if not stores:
        what = f"none of its {len(found)} matches holds a store ({STORE} is missing)" if found else "nothing matches"
        raise FolderRefused(pattern, f"{what}; name the data folders of stores")
    return stores


def names_one_store(paths: Sequence[str]) -> bool:
    """Returns whether these are the data folder of one store, by its name."""
    return len(paths) == 1 and _holds(local_path(paths[0]), STORE)


def _shards(path: str) -> list[DataFolder]:
    """Returns the shards in the folder of a node; none if the folder holds a store."""
    from eventstore_cluster.shard_folders import plan  # workers have no need of it

    if not _is_nodes(path):
        return []
    try:
        planned = plan(Path(path), None).shards
    except FolderRefused as error:
        if all(_holds(str(each), STORE) for each in shard_folders(Path(path))):
            raise
        raise _Unfinished(str(error.fields["path"]), str(error.fields["why"])) from None
    shards = [each for each in planned if os.path.exists(each.folder / STORE)]
    if not shards:
        raise FolderRefused(path, "is the folder of a node that has not stored anything yet")
    return [DataFolder(str(each.folder), str(each.identity.store), each.identity, each.identity.ancestors) for each in shards]


def _is_nodes(path: str) -> bool:
    """Whether the folder holds the shards of a node. Its registry may be lost, since the shards know all that it says."""
    return not _holds(path, STORE) and (_holds(path, CLUSTER) or _holds(path, "shard-0", STORE))


def _holds_shards(path: str) -> bool:
    return _holds(path, CLUSTER) and bool(glob.glob(f"{glob.escape(path)}/shard-*/{STORE}"))


def _holds(path: str, *names: str) -> bool:
    return os.path.exists(os.path.join(path, *names))


def _data_folder(path: str) -> DataFolder:
    if not os.path.isdir(path):
        what = "is a file, not a folder" if os.path.exists(path) else "does not exist"
        raise FolderRefused(path, f"{what}; name the data folder of a store")
    try:
        identity, document = read_store(OsFiles(), Path(path))
        shard = shard_of(Path(path), document) if document.get(CLUSTER) is not None else None
        return DataFolder(path, str(identity), shard, ancestors_of(Path(path), document))
    except OSError as error:
        raise FolderRefused(path, f"cannot be read ({error.strerror}); check owner and mode") from None


def _refuse_copies(data_folders: list[DataFolder]) -> None:
    seen: dict[str, str] = {}
    for data_folder in data_folders:
        if data_folder.store in seen:
            raise FolderRefused(
                data_folder.path, f"holds the same store as {seen[data_folder.store]}; one is a copy, leave it out"
            )
        seen[data_folder.store] = data_folder.path
