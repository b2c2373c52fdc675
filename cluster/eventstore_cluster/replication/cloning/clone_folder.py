"""Makes the folder of a shard that is split off, from its parent's folder on the same node.

Completed event files are final, so the clone gets hard links to them. Files that are changed in place are copied. While the
shard is in preparation the clone has sorted files only, which nothing cuts back any more (R6). When its slots are given to it,
it gets the rest, up to the file that the split ended. `store.json` is written last: without it the folder is a clone in the
making, which may be gone on with, or made again.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.opening import BROKER, OFFSETS, TOPICS, open_broker_folder
from eventstore.chunks.documents import Document, Tree, read_file, replace_document, write_document
from eventstore.chunks.files import Files
from eventstore.chunks.folder import ChunkFolder
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.server.broker.beside import BROKER as BROKER_FOLDER
from eventstore.server.logs import get_logger
from eventstore.server.outbox.checkpoint_file import INHERITED
from eventstore.server.serve import REACTIONS
from eventstore.settings.broker import BrokerSettings
from eventstore.store.data_folder import (
    DIRECTORY,
    EVENTS_FOLDER,
    FORMAT,
    STORE,
    ShardIdentity,
    ancestors_of,
    event_folder,
    read_store,
)
from eventstore.store.sorted.file_names import INDEX
from eventstore.subjects.key_buckets import SUBJECTS, buckets_in
from eventstore_cluster.registry.lineage import Birth
from eventstore_cluster.replication.logs.follower_logs import broker_identity
from eventstore_cluster.replication.logs.incarnations import MARK, forget_incarnations

_log = get_logger("eventstore.cluster")


class CloneFolder:
    """The folder `folder` of a clone, made from `parent`, the folder of the shard that is split. The caller holds the lock of
    `folder`.
    """

    def __init__(self, files: Files, parent: Path, folder: Path) -> None:
        self._files, self._parent, self._folder = files, parent, folder
        files.make_folder(folder / EVENTS_FOLDER)

    @property
    def is_finished(self) -> bool:
        return self._files.exists(self._folder / STORE)

    def link_sorted(self, number: int) -> bool:
        """Links the parent's file of this number, durably, if it is there and sorted.

        Raises:
            FolderRefused, Corrupt: the parent's folder holds no store, or the file is damaged.
            OSError: no space, or the file system has no hard links.
        """
        source = self._source()
        if not self._files.exists(source.chunk_path(number)) or not source.read_header(number).sorted:
            return False
        own = self._own(source)
        self._link(source, own, number)
        self._files.sync_folder(own.path)
        return True

    def check_links(self) -> None:
        """Raises OSError: the parent's files cannot be linked, perhaps because the file system has no hard links."""
        path = self._folder / EVENTS_FOLDER / "link.tmp"
        if self._files.exists(path):
            self._files.remove(path)
        self._files.link(self._parent / STORE, path)
        self._files.remove(path)

    def check_subjects(self) -> None:
        """Raises FolderRefused: the parent has keys of subjects, which clones do not get."""
        if buckets_in(self._files, self._parent / SUBJECTS):
            what = "the shard has keys of subjects, and is not split for that reason; call the split off"
            raise FolderRefused(str(self._parent / SUBJECTS), what)

    def prepare_broker(self, shard: ShardIdentity, settings: BrokerSettings) -> None:
        """Makes the folder of a broker without messages."""
        if not self._files.exists(self._folder / BROKER_FOLDER / BROKER):
            path = self._folder / BROKER_FOLDER
            open_broker_folder(path, settings, files=self._files, identity=broker_identity(shard)).close()

    def take_over(self, shard: ShardIdentity, birth: Birth, settings: BrokerSettings) -> bool:
        """Finishes the folder. Returns False if its parent does not have what the shard begins with: the folder is abandoned.

        Raises:
            EventStoreError: something else is in the way, a full disk perhaps. What there is stays: the set counts on it.
        """
        try:
            if (lacking := self._lacking(shard, birth)) is not None:
                _log.warning("the parent's folder does not have what this shard begins with: it is fetched", error=str(lacking))
                self.abandon()
                return False
            self.finish(shard, birth, settings)
        except OSError as error:
            raise EventStoreError(
                f"the folder of shard {shard.shard} is not finished, which is tried again: {error}"
            ) from error
        return True

    def _lacking(self, shard: ShardIdentity, birth: Birth) -> Exception | None:
        """Returns why the parent's folder, and what was taken over of it, are not what the shard begins with."""
        try:
            source, own = self._source(), event_folder(self._files, self._folder, shard.store, shard.ancestors)
            last = shard.ancestors[-1].through
            for number in range(1, last + 1):
                if not self._files.exists(own.chunk_path(number)) and not self._files.exists(source.chunk_path(number)):
                    return FileNotFoundError(f"{source.chunk_path(number)} is missing")
            if last:
                self._check_last(own if self._files.exists(own.chunk_path(last)) else source, last, birth)
            read_file(self._files, self._parent / BROKER_FOLDER / TOPICS)
            self._groups_of(self._parent)
        except (FolderRefused, Corrupt, FileNotFoundError) as error:
            return error
        return None

    def _check_last(self, folder: ChunkFolder, last: int, birth: Birth) -> None:
        header = folder.read_header(last)
        if (header.end, header.checksum) != (birth.end, birth.checksum):
            raise FolderRefused(
                str(folder.chunk_path(last)),
                f"ends at byte {header.end} with checksum {header.checksum}, the shard begins with one that ends at "
                f"{birth.end} with {birth.checksum}",
            )

    def finish(self, shard: ShardIdentity, birth: Birth, settings: BrokerSettings) -> None:
        """Makes the folder a complete folder of the shard, durably.

        Raises:
            FolderRefused, Corrupt, OSError: the parent's folder does not have what the shard begins with.
        """
        source = self._source()
        own = event_folder(self._files, self._folder, shard.store, shard.ancestors)
        last = shard.ancestors[-1].through
        self._remove_after(own, last)
        # the last one first: the parent sorts in order meanwhile, so no sorted file follows an unsorted one
        for number in range(last, 0, -1):
            if not self._files.exists(own.chunk_path(number)):
                self._link(source, own, number)
        if last:
            self._check_last(own, last, birth)
        self._files.sync_folder(own.path)
        own.write_document(last)
        self.prepare_broker(shard, settings)
        topics = read_file(self._files, self._parent / BROKER_FOLDER / TOPICS)
        replace_document(self._files, self._folder / BROKER_FOLDER / TOPICS, topics)
        groups = self._groups_of(self._folder)
        groups.inherit(self._groups_of(self._parent))
        groups.write(groups.tree())
        self._write_places(shard, birth.places)
        document: Document = {"format": FORMAT, "store": str(shard.store), "created": int(time.time() * 1e6), **shard.members()}
        write_document(self._files, self._folder / STORE, document)

    def abandon(self) -> None:
        """Removes what there is: the replica is fetched again, by a stranger to the set."""
        forget_incarnations(self._files, self._folder)
        for each in (EVENTS_FOLDER, DIRECTORY, BROKER_FOLDER):
            shutil.rmtree(self._folder / each, ignore_errors=True)
        for name in (MARK, REACTIONS, INHERITED):  # an empty folder may become a store's
            if self._files.exists(self._folder / name):
                self._files.remove(self._folder / name)

    def _write_places(self, shard: ShardIdentity, places: Tree) -> None:
        """Writes where reactions and outboxes continue."""
        reactions = places.get("reactions")
        if isinstance(reactions, dict):
            write_document(self._files, self._folder / REACTIONS, {**reactions, "store": str(shard.store)})
        write_document(self._files, self._folder / INHERITED, {"published": places.get("published", {})})

    def _groups_of(self, folder: Path) -> OffsetsDocument:
        document = OffsetsDocument(self._files, folder / BROKER_FOLDER / OFFSETS)
        document.load()
        return document

    def _source(self) -> ChunkFolder:
        identity, document = read_store(self._files, self._parent)
        return event_folder(self._files, self._parent, identity, ancestors_of(self._parent, document))

    def _own(self, source: ChunkFolder) -> ChunkFolder:
        """Returns the clone's files while it is not known where they end."""
        return replace(source, path=self._folder / EVENTS_FOLDER)

    def _link(self, source: ChunkFolder, own: ChunkFolder, number: int) -> None:
        """Links a file, then its index, if it is sorted: an index that is missing is built, one too many removed."""
        if not self._files.exists(own.chunk_path(number)):
            if not source.read_header(number).sorted:
                self._sync(source.chunk_path(number))
            self._files.link(source.chunk_path(number), own.chunk_path(number))
        index, target = source.derived_path(number, INDEX), own.derived_path(number, INDEX)
        if own.read_header(number).sorted and self._files.exists(index) and not self._files.exists(target):
            self._files.link(index, target)

    def _sync(self, path: Path) -> None:
        """Makes durable what the parent may be writing, before its clone says that it has it."""
        file = self._files.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def _remove_after(self, own: ChunkFolder, last: int) -> None:
        """Removes files that the parent completed after the split."""
        number = last + 1
        while self._files.exists(own.chunk_path(number)):
            for path in (own.chunk_path(number), own.derived_path(number, INDEX)):
                if self._files.exists(path):
                    self._files.remove(path)
            shutil.rmtree(self._folder / DIRECTORY, ignore_errors=True)
            number += 1
