"""Turns the folder of a store without replicas into a node's folder, in place: a single store becomes shard 0 of it.

    1  adopting.json      what the folder has, to be removed at last
    2  shard-0            hard links to all files of the single store; its own store.json and replica.json
    3  kept.json          the keys of the cluster, which were written to the registry before
    4  node.json          from here on it is the folder of a node, and no single store any more
    5  what adopting.json names is removed, store.json first, then adopting.json

Until step 4 the single store is whole, and may continue; asked again, `shard-0` is made again. After it the shard is whole,
and a start of the node continues with step 5. The shards of a node without replicas have their own folders already: only
`cluster` is removed. The folders are locked from the first step to the last.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from eventstore.broker.opening import BROKER
from eventstore.chunks.documents import PREVIOUS, Document, DocumentValue, read_document, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused, InvalidArgument
from eventstore.server.broker.beside import BROKER as BROKER_FOLDER
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ACCESS, CLUSTER, SHARD_FOLDER, START_NODE, STORE, ShardIdentity, read_store
from eventstore_cluster.nodes.node_file import INTENT, INTENT_FORMAT, finish_adoption, node_document, remove_tree
from eventstore_cluster.registry.file_registry import LOCK as REGISTRY_LOCK
from eventstore_cluster.registry.kept_keys import KEPT, Kept
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs
from eventstore_cluster.replication.logs.incarnations import DOCUMENT as REPLICA
from eventstore_cluster.shard_folders import LOCK, NODE_FILE, PlannedShard, plan

_NOT_LINKED: Final = (STORE, LOCK, "lock.mdb")
"""Files that the shard has of its own: its identity, and locks, which must not be the single store's."""


@dataclass(frozen=True, slots=True)
class AdoptedShard:
    """A shard as its replica begins.

    Attributes:
        epoch: the largest in its logs.
        events: how many it has.
    """

    identity: ShardIdentity
    incarnation: str
    epoch: int
    events: int


class AdoptedFolder:
    """A folder that is locked.

    Attributes:
        cluster: the uuid that the cluster is to have. A single store gives its own, so that positions in it stay valid.
        stores: the uuid of each shard's store, by the shard's number.
    """

    def __init__(self, data: Path, files: Files | None = None) -> None:
        """Writes nothing.

        Raises:
            FolderRefused, Corrupt: it is not the folder of a store or node without replicas.
        """
        self._files, self._data = files or OsFiles(), data
        layout = plan(data, None, self._files)
        for each in layout.shards:
            self._check(each)
        only = layout.shards[0]
        single = only.folder == data and read_store(self._files, data)[1].get(CLUSTER) is None
        self.cluster = only.identity.store if single else layout.cluster
        self.number = layout.number
        self._shards = [replace(each, identity=self._identity(each)) for each in layout.shards]
        self.stores = {each.identity.shard: each.identity.store for each in self._shards}

    def _check(self, shard: PlannedShard) -> None:
        read_store(self._files, shard.folder)
        if self._files.exists(shard.folder / REPLICA):
            raise FolderRefused(
                str(shard.folder), "is a replica of a cluster; the folder of its node is above it, which needs no adopting"
            )

    def _identity(self, shard: PlannedShard) -> ShardIdentity:
        broker: tuple[uuid.UUID, int] | None = None
        path = shard.folder / BROKER_FOLDER / BROKER
        if self._files.exists(path):
            match read_document(self._files, path):
                case {"store": str(store), "node": int(node)}:
                    broker = uuid.UUID(store), node
                case _:
                    raise Corrupt(str(path), 0, f"no identity of a broker; the previous copy is {path.name}{PREVIOUS}")
        return replace(shard.identity, cluster=self.cluster, broker=broker)

    @property
    def _in_place(self) -> bool:
        return self._shards[0].folder == self._data

    def _folder(self, shard: PlannedShard) -> Path:
        return self._data / f"shard-{shard.identity.shard}"

    def begin(self) -> None:
        """Notes what is to be removed at last, durably, and removes what an earlier attempt made (1).

        Raises:
            FolderRefused: the folder of a shard is there, and no earlier attempt made it.
        """
        begun = self._files.exists(self._data / INTENT)
        for shard in self._shards if self._in_place else ():
            if not begun and self._files.exists(folder := self._folder(shard)):
                raise FolderRefused(str(folder), "is in the place of the shard that the store is to become; move it away")
        listed: list[DocumentValue] = [*self._own_names()] if self._in_place else [CLUSTER]
        write_document(self._files, self._data / INTENT, {"format": INTENT_FORMAT, "names": listed})
        if self._in_place:
            for shard in self._shards:
                remove_tree(self._files, self._folder(shard))

    def make_shards(self) -> None:
        """Links the files of a single store, and says in each shard what it is, durably (2).

        Raises:
            OSError: no space, or the file system has no hard links.
        """
        for shard in self._shards:
            if self._in_place:
                self._link(self._data, self._folder(shard), [name for name in self._own_names() if name != CLUSTER])
            document: Document = {**read_store(self._files, shard.folder)[1], **shard.identity.members()}
            write_document(self._files, self._folder(shard) / STORE, document)
            self._files.sync_folder(self._data)

    def _own_names(self) -> list[str]:
        """Returns the names of a single store's files in its folder."""
        return [name for name in self._files.names(self._data) if not _stays(name)]

    def _link(self, source: Path, target: Path, names: Sequence[str]) -> None:
        """Links what a folder has of these; the names are durable on return."""
        self._files.make_folder(target)
        for name in names:
            if name in _NOT_LINKED or name.startswith(f"{STORE}."):
                continue
            try:
                below = self._files.names(source / name)
            except NotADirectoryError:
                self._files.link(source / name, target / name)
            else:
                self._link(source / name, target / name, below)
        self._files.sync_folder(target)

    def open_logs(self, node: str) -> list[AdoptedShard]:
        """Opens each shard once as the replica of the node, so that nothing is left to be refused later.

        Raises:
            FolderRefused, Corrupt
        """
        return [self._open(shard, node) for shard in self._shards]

    def _open(self, shard: PlannedShard, node: str) -> AdoptedShard:
        settings = ServerSettings(data=self._folder(shard))
        logs = FollowerLogs(self._files, settings, shard.identity, node)
        try:
            epoch = max(tail.last.epoch for tail in logs.tails)
            return AdoptedShard(shard.identity, logs.incarnation.token, max(epoch, 1), logs.events.next_sequence - 1)
        finally:
            logs.close()

    def commit(self, node: str, kept: Kept) -> None:
        """Makes it the folder of a node, durably, and removes the files of the store that it was (3 to 5). Raises OSError."""
        write_document(self._files, self._data / KEPT, kept.value())
        write_document(self._files, self._data / NODE_FILE, node_document(self.cluster, node))
        finish_adoption(self._files, self._data)


def _stays(name: str) -> bool:
    return name == LOCK or name.startswith((ACCESS, INTENT, NODE_FILE, KEPT)) or SHARD_FOLDER.fullmatch(name) is not None


def check_is_folder(data: Path) -> None:
    """Raises FolderRefused: there is no folder at this path."""
    if not data.is_dir():
        raise FolderRefused(str(data), "is not a folder; give that of a store, as `eventstore serve --data` has it")


@contextlib.contextmanager
def adopted_folder(data: Path) -> Iterator[AdoptedFolder]:
    """Opens a folder that is to be adopted, for this process alone.

    Raises:
        FolderRefused, Corrupt: another process has it, it belongs to a node with replicas, or holds no store.
    """
    files = OsFiles()
    check_is_folder(data)
    if files.exists(data / NODE_FILE):
        raise FolderRefused(
            str(data),
            f"is the folder of a node of a cluster already; start it with {START_NODE}",
        )
    try:
        shards = plan(data, None, files).shards
    except InvalidArgument as error:
        raise FolderRefused(str(data), error.message) from None
    with contextlib.ExitStack() as held:
        for path in (data / CLUSTER / REGISTRY_LOCK, data / LOCK):
            if path.parent.is_dir():
                held.callback(files.lock(path).release)
        for shard in shards:
            if shard.folder != data and files.exists(shard.folder / LOCK):  # of a process whose node was killed
                files.lock(shard.folder / LOCK).release()
        yield AdoptedFolder(data, files)
