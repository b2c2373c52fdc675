"""Opens a data folder: creates it, or recovers the state that the last process left, cleanly or not.

    store.json     format version, store uuid, created
    lock           held as long as the store is open; the process id in it is for people
    events/        event files, their indexes, chunks.json
    directory/     LMDB; derived
    recent.json    the preload file; derived
    cut/           copies of torn tails that were cut

If a file is missing or foreign, opening is refused and changes nothing. `store.json` is written last when a store is created:
if it exists, the events folder must exist too.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eventstore.chunks.documents import PREVIOUS, read_document, write_document
from eventstore.chunks.files import Files, Lock, OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.opening import OpenedChunks, OwnedFolder, refusing
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.records.commit import FRAMING
from eventstore.settings.store import StoreSettings
from eventstore.store.append import SECOND_FORMAT
from eventstore.store.data_folder import (
    ACCESS,
    BACKUP_VIEW,
    CLUSTER,
    DIRECTORY,
    FIRST_FORMAT,
    FORMAT,
    STORE,
    ShardIdentity,
    ancestors_of,
    check_shard,
    event_folder,
    format_of,
    refuse_node_folder,
    with_format,
)
from eventstore.store.engine import StoreEngine
from eventstore.store.memory.preload import PreloadFile
from eventstore.store.memory.recent import RecentAggregates
from eventstore.store.memory.tail_recovery import TailRecovery
from eventstore.store.memory.unsorted_tail import UnsortedTail
from eventstore.store.memory.version_cache import VersionCache
from eventstore.store.sorted.directory_recovery import close_directory, open_directory
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.sorting import sort_file, switch

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoreOpenReport:
    """What opening found and did, for logs and operators."""

    files: int = 0
    torn_bytes: int = 0
    torn_copy: str | None = None
    indexes_built: list[int] = field(default_factory=list)
    directory: str = "kept"
    seconds: float = 0.0


@dataclass(slots=True)
class OpenStore:
    """An engine and the resources to release when it is closed."""

    engine: StoreEngine
    lock: Lock
    report: StoreOpenReport
    uuid: uuid.UUID
    settings: StoreSettings
    preload: PreloadFile

    def close(self) -> None:
        """Syncs, writes the preload file, and releases the folder."""
        try:
            self.preload.write(self.engine.recent_aggregates())
            self.engine.close()
        finally:
            try:
                close_directory(self.engine.directory)
            finally:
                self.lock.release()


def open_folder(
    path: Path,
    settings: StoreSettings,
    *,
    files: Files | None = None,
    directory: Path | None = None,
    clock: Callable[[], float] = time.time,
    shard: ShardIdentity | None = None,
    epoch: int | None = None,
) -> OpenStore:
    """Opens or creates the store in `path`. `directory`: where LMDB lives, if not in the folder itself. `shard`: the store must
    be this one; the store of a cluster of one shard may be opened without. `epoch`: of the leadership that begins, if one does.

    Raises:
        FolderRefused, Corrupt
    """
    started = time.perf_counter()
    files = files or OsFiles()
    created = FORMAT if epoch is None else FIRST_FORMAT
    own = OwnedFolder(files, path, STORE, FORMAT, lambda identity: event_folder(files, path, identity), _beside(shard), created)
    if files.exists(path / BACKUP_VIEW):
        raise FolderRefused(str(path), "shows a backup to readers; restore the backup by `eventstore restore`")
    if shard is None:
        refuse_node_folder(files, path)
    with refusing(path):
        lock = own.lock()
    try:
        with refusing(path):
            if shard is None:
                identity, document = own.identity(dict, clock)
            else:
                identity, document = own.identity(shard.members, clock, shard.store)
            own_members = shard.members() if check_shard(path, document, shard) and shard is not None else {}
            if epoch is None:
                format_ = FORMAT if settings.upgrade_format else FIRST_FORMAT
            else:
                format_ = FIRST_FORMAT if shard is None else shard.format
            wanted = with_format({**document, **own_members}, format_)
            if wanted != document:
                write_document(files, path / STORE, wanted)
                if wanted["format"] != document["format"]:
                    _log.info("%s: event files are written in format %s from now on", path, wanted["format"])
                document = wanted
            report = StoreOpenReport()
            events = event_folder(files, path, identity, ancestors_of(path, document), format_of(document))
            engine = _open_engine(events, settings, directory or path / DIRECTORY, report, clock, epoch)
            engine.slot_filter = None if shard is None else shard.slot_filter
        preload = PreloadFile(files, path)
        with contextlib.suppress(EventStoreError):  # what cannot be read is reported to the first caller that needs it
            engine.recent.begin(preload.read())
            if epoch is None:  # clients wait for a new leader: it warms up while it serves them
                engine.warm(engine.recent_aggregates())
        report.files, report.seconds = len(engine.files.headers), time.perf_counter() - started
        return OpenStore(engine, lock, report, identity, settings, preload)
    except BaseException:
        lock.release()
        raise


def note_shard(files: Files, path: Path, shard: ShardIdentity) -> None:
    """Writes into a store's folder what its shard is now. Raises FolderRefused, Corrupt."""
    with refusing(path):
        document = read_document(files, path / STORE)
        write_document(files, path / STORE, with_format({**document, **shard.members()}, shard.format))


def _beside(shard: ShardIdentity | None) -> tuple[str, ...]:
    """Returns the names that a folder may have before its store is created: the list of access, and files of a node."""
    access = (ACCESS, f"{ACCESS}.lock", f"{ACCESS}{PREVIOUS}")
    return access if shard is None else (*access, CLUSTER)


def _open_engine(
    folder: ChunkFolder,
    settings: StoreSettings,
    directory_path: Path,
    report: StoreOpenReport,
    clock: Callable[[], float],
    epoch: int | None,
) -> StoreEngine:
    chunks = OpenedChunks(
        folder,
        FRAMING,
        size_bytes=settings.file_size_bytes,
        preallocate_bytes=settings.preallocate_bytes,
        sync=settings.durability == "sync",
        clock=clock,
        epoch=epoch,
    )
    event_files, tail = EventFiles(folder, settings.open_files_max), UnsortedTail()
    sorted_files = max((header.number for header in chunks.headers if header.sorted), default=0)
    for header in chunks.headers:
        if header.number <= sorted_files:
            _add_sorted(event_files, header, report)
        else:
            event_files.add(header)
            _load_unsorted(chunks, tail, header, folder)
    chunks.finish()
    if chunks.torn is not None:
        report.torn_bytes, report.torn_copy = chunks.torn.bytes, chunks.torn.copy
    _remove_orphans(folder, event_files.headers)
    directory = open_directory(directory_path, event_files, report)
    return StoreEngine(
        event_files,
        tail,
        directory,
        VersionCache(settings.cached_bytes_max),
        RecentAggregates(settings.preload_aggregates),
        chunks.writer,
        chunks.front,
        epoch=chunks.epoch,
        clock=clock,
        tag_memory_bytes=settings.tag_memory_bytes,
    )


def _add_sorted(event_files: EventFiles, header: ChunkHeader, report: StoreOpenReport) -> None:
    if not header.sorted:  # a later file is sorted: this store never leaves it so, but it is easily repaired
        sort_file(event_files.folder, header.number)
        switch(event_files.folder, header.number)
        header = event_files.folder.read_header(header.number)
    try:
        event_files.add(header)
    except Corrupt as error:
        if error.fields["file"] != event_files.index_name(header.number):
            raise
        event_files.build_index(header)
        report.indexes_built.append(header.number)


def _load_unsorted(chunks: OpenedChunks, tail: UnsortedTail, header: ChunkHeader, folder: ChunkFolder) -> None:
    path = folder.chunk_path(header.number)
    file = tail.begin(header.number, header.first_sequence)
    file.file = folder.files.open(path)
    chunks.load(header, file.file, TailRecovery(tail, file, str(path), tags=header.format >= SECOND_FORMAT))


def _remove_orphans(folder: ChunkFolder, headers: list[ChunkHeader]) -> None:
    """Removes the indexes of files that are not sorted, which a crash between the two renames of a switch leaves."""
    unsorted = {header.number for header in headers if not header.sorted}
    for name in folder.derived_names(INDEX):
        number = int(name.partition(".")[0])
        if number in unsorted or number > len(headers):
            folder.files.remove(folder.path / name)
