"""The folder of a node, opened: its registry locked for the life of the node, and its shards as they must be.

A folder that is refused is left as it was: until everything has been checked, nothing but the lock of a registry that is there
already is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from eventstore.chunks.files import OsFiles
from eventstore.errors import FolderRefused
from eventstore.store.data_folder import CLUSTER, START_NODE
from eventstore_cluster.registry.file_registry import FileRegistry
from eventstore_cluster.registry.registry import Changes
from eventstore_cluster.shard_folders import LOCK, NODE_FILE, PlannedShard, ShardLayout, plan

Checked = TypeVar("Checked")


@dataclass(slots=True)
class NodeFolder:
    """A registry that is locked, and the shards that there are, or are to be."""

    registry: FileRegistry
    layout: ShardLayout

    def changes(self) -> Changes:
        """Returns what the registry has to hold and does not; nothing if it does."""
        entries, wanted = self.registry.state.entries, self.layout.changes()
        if entries.keys() == wanted.keys():
            return {}
        gone: Changes = dict.fromkeys(entries)
        return {**gone, **wanted}


def open_node_folder(data: Path, shards: int | None) -> NodeFolder:
    """Opens the folder, or creates it. Same as `open_checked_folder` without a check.

    Raises:
        FolderRefused: another node has it, or it or its registry is not what it should be.
        InvalidArgument: `shards` is out of range.
    """
    return open_checked_folder(data, shards, lambda _: None)[0]


def open_checked_folder(
    data: Path, shards: int | None, check: Callable[[Sequence[PlannedShard]], Checked]
) -> tuple[NodeFolder, Checked]:
    """Opens the folder, or creates it once `check` has returned for its shards, and returns what that did as well.

    `shards`: how many there must be; None: as many as there are, one in a new folder.

    Raises:
        EventStoreError: of `check`.
        FolderRefused: another node has it, or it or its registry is not what it should be.
        InvalidArgument: `shards` is out of range.
    """
    if data.exists() and not data.is_dir():
        raise FolderRefused(str(data), "is a file, not a folder; choose another path")
    if (data / NODE_FILE).exists():
        raise FolderRefused(str(data), f"belongs to a node of a cluster with replicas; start it with {START_NODE}")
    new: tuple[ShardLayout, Checked] | None = None
    if not (data / CLUSTER).exists():
        layout = plan(data, shards)
        _check_idle(layout)
        new = layout, check(layout.shards)
    # More than any revision before, at a change a second, also if the registry was lost or restored: clients go by the newest.
    registry = FileRegistry(data / CLUSTER, first_revision=int(time.time()))
    OsFiles().close_to_others(data)
    try:
        layout = plan(data, shards)
        if new is not None and _folders(new[0]) == _folders(layout):
            return NodeFolder(registry, layout), new[1]
        return NodeFolder(registry, layout), check(layout.shards)  # of a new folder: another node has made it meanwhile
    except BaseException:
        registry.close()
        raise


def _folders(layout: ShardLayout) -> list[Path]:
    return [each.folder for each in layout.shards]


def _check_idle(layout: ShardLayout) -> None:
    """Refuses a store that `eventstore serve` has open, before anything is put beside it."""
    files = OsFiles()
    for shard in layout.shards:
        if files.exists(shard.folder / LOCK):
            files.lock(shard.folder / LOCK).release()
