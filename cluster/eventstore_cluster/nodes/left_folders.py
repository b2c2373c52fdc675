"""Folders of replicas that moved to other nodes: put away, and deleted when a grace time is over.

    shard-3                     the replica, while the registry names the node
    left/shard-3-TIME           put away at this Unix time, as a whole: one rename
    left/shard-3-TIME.deleting  being deleted: never taken for a replica again, also half of it

A crash leaves one of these, and the next start continues it. What the registry names is neither put away nor deleted: it is
read again, after the process has ended, right before.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eventstore.chunks.files import Files, OsFiles
from eventstore.store.data_folder import SHARD_FOLDER
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import SHARDS, read_shard
from eventstore_cluster.replica.registry_state import Seat
from eventstore_cluster.replication.logs.incarnations import known_incarnations

LEFT: Final = "left"
_NAME: Final = re.compile(r"shard-(0|[1-9][0-9]{0,3})-([0-9]+)(\.deleting)?")
_DELETING: Final = ".deleting"


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """A folder that was put away.

    Attributes:
        since: when, in seconds of Unix time.
    """

    shard: int
    since: int
    path: Path


class LeftFolders:
    """The put-away folders of the node `name`."""

    def __init__(self, data: Path, name: str, files: Files | None = None) -> None:
        self._data, self._name, self._files = data, name, files or OsFiles()

    def replicas(self) -> list[int]:
        """Returns the shards that have a folder, whether the registry names them or not."""
        found = (SHARD_FOLDER.fullmatch(each) for each in self._files.names(self._data))
        return sorted(int(each[1]) for each in found if each is not None)

    def put_away(self, shard: int) -> Path:
        """Renames the folder of a shard, durably. Its process has ended. Raises OSError."""
        folder = self._data / LEFT
        self._files.make_folder(folder)
        target = folder / f"shard-{shard}-{time.time_ns() // 1_000_000_000}"
        if self._files.exists(target):  # it came back and left within a second: its copy is the newer one
            self._delete(target)
        self._files.rename(self._data / f"shard-{shard}", target)
        self._files.sync_folder(folder)
        self._files.sync_folder(self._data)
        return target

    def left(self) -> Iterator[LeftFolder]:
        """Yields the folders that are put away, the oldest first."""
        folder = self._data / LEFT
        names = self._files.names(folder) if self._files.exists(folder) else []
        found = [each for name in names if (each := _NAME.fullmatch(name)) is not None]
        for each in sorted(found, key=lambda each: int(each[2])):
            yield LeftFolder(int(each[1]), int(each[2]), folder / each[0])

    def delete(self, left: LeftFolder) -> None:
        """Deletes a folder; what a crash leaves of it is deleted next time. Raises OSError."""
        self._delete(left.path)

    def _delete(self, path: Path) -> None:
        if not path.name.endswith(_DELETING):
            deleting = path.with_name(path.name + _DELETING)
            if self._files.exists(deleting):
                shutil.rmtree(deleting)
            self._files.rename(path, deleting)
            path = deleting
        shutil.rmtree(path)

    def is_named(self, shard: int, seen: RegistrySnapshot) -> bool:
        """Whether the registry names the replica of this node, or does not know its shard: then it is not touched."""
        value = seen.value(f"{SHARDS}{shard}")
        if value is None:
            return True
        state = read_shard(shard, value).state
        return self._name in state.replicas or any(member.node == self._name for member in state.in_sync)

    def may_be_deleted(self, left: LeftFolder, seen: RegistrySnapshot) -> bool:
        """Whether the shard has all replicas that it needs, and this folder is none of them."""
        value = seen.value(f"{SHARDS}{left.shard}")
        if left.path.name.endswith(_DELETING):
            return True
        if value is None:
            return False
        state = read_shard(left.shard, value).state
        own = {Seat(self._name, each) for each in known_incarnations(self._files, left.path)}
        return len(state.in_sync) >= max(state.in_sync_min, 1) and not own & state.in_sync
