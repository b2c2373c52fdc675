"""Everything that a follower keeps of its shard: the logs of events and messages, and the documents."""

from __future__ import annotations

import json
import uuid

from eventstore.broker.log.queue_chunks import QueueChunks
from eventstore.broker.opening import BROKER, BrokerIdentity, message_folder, open_broker_folder
from eventstore.chunks.files import Files, Lock
from eventstore.chunks.opening import LOCK, refusing
from eventstore.records import commit, message
from eventstore.server.broker.beside import BROKER as BROKER_FOLDER
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import STORE, ShardIdentity, check_shard, event_folder, read_store
from eventstore.store.opening import note_shard, open_folder
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.places import LogEnds, Reach
from eventstore_cluster.replication.logs.documents import DELETIONS, FollowerDocuments, read_version, tail_of
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.logs.incarnations import Incarnation, next_incarnation
from eventstore_cluster.replication.logs.pieces import Cargo, Documents


def broker_identity(shard: ShardIdentity) -> BrokerIdentity:
    """Returns the identity of a shard's broker, the same on all its replicas. Its `node` is never 0 (R15)."""
    store, node = shard.broker or (uuid.uuid5(shard.store, BROKER), shard.shard + 1)
    return BrokerIdentity(store, node)


class FollowerLogs:
    """The folder of a replica that does not lead, locked. Used by one thread at a time.

    Attributes:
        incarnation: of this start.
        folder: of the shard.
    """

    def __init__(
        self, files: Files, settings: ServerSettings, shard: ShardIdentity, node: str, incarnation: Incarnation | None = None
    ) -> None:
        """Opens the folder, or creates it. `incarnation`: of this start, if it has begun.

        Raises:
            FolderRefused, Corrupt
        """
        self._files, self._settings, self.shard = files, settings, shard
        self.folder = settings.data
        self._locks: list[Lock] = []
        try:
            with refusing(self.folder):
                self._begin(node, incarnation)
        except BaseException:
            self.close()
            raise

    def _begin(self, node: str, incarnation: Incarnation | None) -> None:
        files, settings, shard, folder = self._files, self._settings, self.shard, self.folder
        broker = folder / BROKER_FOLDER
        if not (files.exists(folder / STORE) and files.exists(broker / BROKER)):
            open_folder(folder, settings.store_settings, files=files, shard=shard).close()
            open_broker_folder(broker, settings.broker_settings, files=files, identity=broker_identity(shard)).close()
        for each in (folder, broker):
            self._locks.append(files.lock(each / LOCK))
        if check_shard(folder, read_store(files, folder)[1], shard):
            note_shard(files, folder, shard)  # it was split while this replica was away: readers of the folder go by that
        self.incarnation = incarnation or next_incarnation(files, folder, node)
        self._open()

    def _open(self) -> None:
        files, settings, identity = self._files, self._settings, broker_identity(self.shard)
        store, own = settings.store_settings, settings.broker_settings
        self.events = FollowerLog(
            event_folder(files, self.folder, self.shard.store, self.shard.ancestors),
            commit.FRAMING,
            size_bytes=store.file_size_bytes,
            preallocate_bytes=store.preallocate_bytes,
        )
        self.messages = FollowerLog(
            message_folder(files, self.folder / BROKER_FOLDER, identity.store),
            message.FRAMING,
            size_bytes=own.chunk_size_bytes,
            preallocate_bytes=own.preallocate_bytes,
        )
        self.documents = FollowerDocuments(files, self.folder)

    @property
    def tails(self) -> tuple[LogTail, ...]:
        return self.events.tail, self.messages.tail, self.documents.tail

    @property
    def reach(self) -> Reach:
        """The last epoch of each log, and where it ends."""
        return tuple((last.epoch, *last.end) for last in (tail.last for tail in self.tails))

    def tails_on_disk(self) -> tuple[LogTail, ...]:
        """Returns the ends of the logs, like `tails`, but for the documents their version on disk, even if the leader's
        documents are to replace them.
        """
        return self.events.tail, self.messages.tail, tail_of(read_version(self._files, self.folder))

    @property
    def last_crcs(self) -> tuple[int, ...]:
        return self.events.last_crc, self.messages.last_crc, 0

    def store(self, cargo: Cargo) -> None:
        """Writes what the leader sent; durable on return. Documents first: records may need them (R14).

        Raises:
            Corrupt, StorageFull, Poisoned, OSError
        """
        events, messages, documents = cargo
        if documents is not None:
            self._delete(documents)
            self.documents.store(documents)
        if events is not None:
            self.events.store(events)
        if messages is not None:
            self.messages.store(messages)

    def _delete(self, documents: Documents) -> None:
        """Deletes the message chunks that the leader has deleted."""
        for name, raw in documents.documents:
            if name == DELETIONS:
                match json.loads(raw):
                    case {"deleted_through": int(number)}:
                        self.messages.delete_through(number)

    def cut(self, ends: LogEnds) -> None:
        """Cuts the logs back. Raises FolderRefused, StorageFull."""
        if self.messages.tail.end != ends[1]:
            own, store = self._settings.broker_settings, broker_identity(self.shard).store
            index = QueueChunks(self._files, self.folder / BROKER_FOLDER, store, own.queue_chunk_entries)
            index.forget_after(max(0, ends[1][0] - 1))
        for log, end in zip((self.events, self.messages), ends, strict=False):
            if log.tail.end != end:
                log.cut(end)
        self.documents.cut(ends[2])

    def close(self) -> None:
        """Closes the logs and releases the folder, for a store that continues them."""
        for log in (getattr(self, "events", None), getattr(self, "messages", None)):
            if log is not None:
                log.close()
        for lock in self._locks:
            lock.release()
