"""Which data folders a query reads: paths and globs to shards, each once.

A folder that a glob matches counts once it holds a store, so that a shard which is being created is picked up when it is
there. A folder that was named must hold one.
"""

from __future__ import annotations

import glob
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.store.data_folder import STORE, event_folder, read_identity

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class Shard:
    """A data folder and the uuid of the store in it."""

    path: str
    store: str

    @property
    def folder(self) -> ChunkFolder:
        return event_folder(OsFiles(), Path(self.path), uuid.UUID(self.store))


def find_shards(paths: Iterable[str]) -> list[Shard]:
    """The shards at `paths`, in the order of their paths.

    Raises:
        InvalidArgument: a path of a file system that is not mounted.
        FolderRefused, Corrupt: there is no store, one of a newer format, or the same store twice.
    """
    folders: set[str] = set()
    for path in paths:
        local = local_path(path)
        if glob.has_magic(local) and not os.path.exists(local):
            folders.update(_matching(local))
        else:
            folders.add(os.path.abspath(local))
    shards = [_shard(folder) for folder in sorted(folders)]
    _refuse_copies(shards)
    return shards


def local_path(path: str) -> str:
    """The path as the operating system takes it.

    Raises:
        InvalidArgument: it is one of HDFS, S3 or the like.
    """
    if not _SCHEME.match(path):
        return path
    parts = urlsplit(path)
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise InvalidArgument(
            f"{path}: event files are read as local files, {parts.scheme}: is none; mount the folder on every worker under "
            "the same path, or copy it there",
            field="path",
            value=path,
        )
    return unquote(parts.path)


def _matching(pattern: str) -> list[str]:
    found = [os.path.abspath(path) for path in glob.glob(pattern)]
    stores = [path for path in found if os.path.exists(os.path.join(path, STORE))]
    if not stores:
        what = f"none of its {len(found)} matches holds a store ({STORE} is missing)" if found else "nothing matches"
        raise FolderRefused(pattern, f"{what}; name the data folders of shards")
    return stores


def _shard(path: str) -> Shard:
    if not os.path.isdir(path):
        what = "is a file, not a folder" if os.path.exists(path) else "there is no such folder"
        raise FolderRefused(path, f"{what}; name the data folder of a shard")
    try:
        return Shard(path, str(read_identity(OsFiles(), Path(path))))
    except OSError as error:
        raise FolderRefused(path, f"cannot be read ({error.strerror}); check owner and mode") from None


def _refuse_copies(shards: list[Shard]) -> None:
    seen: dict[str, str] = {}
    for shard in shards:
        if shard.store in seen:
            raise FolderRefused(shard.path, f"holds the same store as {seen[shard.store]}; one is a copy, leave it out")
        seen[shard.store] = shard.path
