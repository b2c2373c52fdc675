"""The folder of a node: its lock, `node.json` that says which node of which cluster it belongs to, `kept.json` with what the
registry said of that cluster, and its replicas.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import PREVIOUS, Document, read_document, read_tree, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused
from eventstore.store.data_folder import ACCESS, SHARD_FOLDER, STORE
from eventstore_cluster.registry.kept_keys import KEPT, Kept, read_kept
from eventstore_cluster.replica.registry_state import Known
from eventstore_cluster.shard_folders import LOCK, NODE_FILE

FORMAT: Final = 1
INTENT: Final = "adopting.json"
"""Names what is to be removed after the folder of a single store became a node's folder."""
INTENT_FORMAT: Final = 1


class NodeFile:
    """A folder that is locked.

    Attributes:
        cluster: the cluster that the folder belongs to; None until the node has a cluster.
        kept: what the registry said of the cluster; None if that was not kept.
    """

    def __init__(self, data: Path, name: str) -> None:
        """Refuses what is not a folder of this node; writes nothing.

        Raises:
            FolderRefused: it belongs to another node, or holds something else.
            Corrupt: `node.json` is damaged.
        """
        self._files = OsFiles()
        self._data, self._name = data, name
        self.cluster = self._read()
        self.kept = self._read_kept()

    def folder(self, shard: int) -> Path:
        return self._data / f"shard-{shard}"

    def take(self, cluster: uuid.UUID) -> None:
        """Makes it the folder of a node of this cluster, durably. Raises FolderRefused: it belongs to another one."""
        if self.cluster is not None and self.cluster != cluster:
            raise FolderRefused(
                str(self._data),
                f"belongs to node {self._name} of the cluster {self.cluster}, this is the cluster {cluster}; choose another "
                "folder, or the etcd and the name of its own cluster",
            )
        if self.cluster is None:
            write_document(self._files, self._data / NODE_FILE, node_document(cluster, self._name))
            self.cluster = cluster

    def has_replica(self, shard: int) -> bool:
        """Whether its store is there: otherwise a process would create an empty one."""
        return self._files.exists(self.folder(shard) / STORE)

    def remove_clone(self, shard: int) -> None:
        """Removes the folder of a shard that was in preparation, whose store was never there."""
        if not self.has_replica(shard):
            shutil.rmtree(self.folder(shard), ignore_errors=True)

    def keep(self, kept: Kept) -> None:
        """Writes what the registry says of the cluster, durably; nothing if it is there. Raises StorageFull, OSError."""
        if kept != self.kept:
            write_document(self._files, self._data / KEPT, kept.value())
            self.kept = kept

    def known(self, shard: int) -> Known | None:
        """Returns what the registry said last of a shard."""
        kept = None if self.kept is None else self.kept.shards.get(shard)
        return None if kept is None else kept.known()

    def without_cluster(self, name: str) -> str:
        """Returns what is wrong if etcd does not know the cluster `name`, which the folder belongs to, and what to do."""
        found = (
            f"{self._data} belongs to node {self._name} of the cluster {self.cluster}, but etcd has no cluster {name}; check "
            "--etcd and --cluster"
        )
        if self.kept is None:
            return f"{found}, or restore etcd from a backup"
        return (
            f"{found}. If etcd has lost its data, restore it from a backup, or start all nodes and rebuild it with "
            "`eventstore cluster rebuild`"
        )

    def refuse_without_cluster(self, name: str) -> None:
        """Raises FolderRefused: another cluster would be created, and the folder has nothing to rebuild its own from."""
        if self.cluster is not None and self.kept is None:
            raise FolderRefused(str(self._data), self.without_cluster(name).removeprefix(f"{self._data} "))

    def _read(self) -> uuid.UUID | None:
        path = self._data / NODE_FILE
        try:
            found = read_document(self._files, path)
        except FileNotFoundError:
            self._refuse_foreign()
            return None
        if found.get("format") != FORMAT:
            raise FolderRefused(str(path), f"format {found.get('format')}; this program knows format {FORMAT}. Use a newer one")
        if found.get("node") != self._name:
            raise FolderRefused(
                str(self._data),
                f"belongs to node {found.get('node')}, not to {self._name}; choose another folder, or that name",
            )
        try:
            return uuid.UUID(str(found.get("cluster")))
        except ValueError:
            raise Corrupt(str(path), 0, f"no node of a cluster; put back its previous copy, {path.name}{PREVIOUS}") from None

    def _read_kept(self) -> Kept | None:
        path = self._data / KEPT
        if self.cluster is None or not self._files.exists(path):
            return None
        found = read_kept(str(path), read_tree(self._files, path))
        if found.cluster.uuid != self.cluster:
            raise Corrupt(str(path), 0, f"of the cluster {found.cluster.uuid}, not of {self.cluster}; remove it")
        return found

    def _refuse_foreign(self) -> None:
        names = self._files.names(self._data)
        if STORE in names:
            raise FolderRefused(
                str(self._data), "is that of a single store; `eventstore cluster adopt` makes it shard 0 of a new cluster"
            )
        for name in names:
            if name != LOCK and not name.startswith((NODE_FILE, KEPT, ACCESS)):  # a crash may leave what it was to become
                what = "the shard of another node" if SHARD_FOLDER.fullmatch(name) else "not of a node with replicas"
                raise FolderRefused(
                    str(self._data), f"has no {NODE_FILE} and holds {name}, which is {what}; choose an empty folder"
                )


@contextlib.contextmanager
def node_file(data: Path, name: str) -> Iterator[NodeFile]:
    """Opens the folder of a node, created if it does not exist, for this process alone.

    Raises:
        FolderRefused: another process has it, it belongs to another node, or it holds something else.
        Corrupt: `node.json` is damaged.
    """
    if data.exists() and not data.is_dir():
        raise FolderRefused(str(data), "is a file, not a folder; choose another path")
    files = OsFiles()
    files.make_folder(data)
    lock = files.lock(data / LOCK)
    files.close_to_others(data)
    try:
        finish_adoption(files, data)
        yield NodeFile(data, name)
    finally:
        lock.release()


def node_document(cluster: uuid.UUID, node: str) -> Document:
    """Returns what `node.json` says."""
    return {"format": FORMAT, "cluster": cluster.hex, "node": node}


def finish_adoption(files: Files, data: Path) -> None:
    """Removes what is left of the store in this folder, if the folder is a node's by now. Raises Corrupt, OSError."""
    path = data / INTENT
    if not files.exists(data / NODE_FILE) or not files.exists(path):
        return
    match read_tree(files, path):
        case {"format": 1, "names": list(names)}:
            for name in sorted(map(str, names), key=lambda name: not name.startswith(STORE)):  # a node reads no store here
                if "/" not in name and name != "..":
                    remove_tree(files, data / name)
        case _:
            raise Corrupt(str(path), 0, "does not say what is left to remove; remove it")
    for each in (path.with_name(path.name + PREVIOUS), path):
        remove_tree(files, each)
    files.sync_folder(data)


def remove_tree(files: Files, path: Path) -> None:
    """Removes a file, or a folder with all that is in it, if it is there."""
    if not files.exists(path):
        return
    try:
        names = files.names(path)
    except NotADirectoryError:
        files.remove(path)
        return
    for name in names:
        remove_tree(files, path / name)
    shutil.rmtree(path, ignore_errors=True)  # its empty folders
