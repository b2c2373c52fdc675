"""Opens a data folder: creates it, or takes it up where the last process left it, cleanly or not.

    store.json     format version, store uuid, created
    lock           held as long as the store is open; the process id in it is for people
    events/        event files, their indexes, chunks.json
    directory/     LMDB; derived
    recent.json    the preload file; derived
    cut/           copies of torn tails that were cut

Refuses, and changes nothing, when something is there that should not be, or is not there that should. `store.json` is
written last when a store is created: where it is, the folder of events must be too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eventstore.chunks.documents import write_document
from eventstore.chunks.files import Files, Lock, OsFiles
from eventstore.chunks.folder import TEMPORARY, ChunkFolder, record_space
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.header import FOOTER_BYTES, RECORDS_FROM, ChunkHeader, check_footer
from eventstore.chunks.recovery import Recovered, read_records, recover
from eventstore.chunks.writer import ChunkWriter
from eventstore.config import StoreSettings
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.store.commit import HEADER_BYTES
from eventstore.store.data_folder import CUT as CUT
from eventstore.store.data_folder import DIRECTORY as DIRECTORY
from eventstore.store.data_folder import ENDING as ENDING
from eventstore.store.data_folder import EVENTS_FOLDER as EVENTS_FOLDER
from eventstore.store.data_folder import FORMAT as FORMAT
from eventstore.store.data_folder import LOCK as LOCK
from eventstore.store.data_folder import STORE as STORE
from eventstore.store.data_folder import event_folder as event_folder
from eventstore.store.data_folder import read_identity as read_identity
from eventstore.store.directory_start import close_directory, open_directory
from eventstore.store.engine import Engine
from eventstore.store.event_files import EventFiles
from eventstore.store.known import KnownAggregates
from eventstore.store.loading import TailLoader
from eventstore.store.preload import PreloadFile
from eventstore.store.sorting import INDEX, sort_file, switch
from eventstore.store.tail import Tail

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenReport:
    """What opening found and did, for logs and people."""

    files: int = 0
    torn_bytes: int = 0
    torn_copy: str | None = None
    indexes_built: list[int] = field(default_factory=list)
    directory: str = "kept"
    seconds: float = 0.0


@dataclass(slots=True)
class OpenStore:
    """An engine together with what has to be let go when it is closed."""

    engine: Engine
    lock: Lock
    report: OpenReport
    uuid: uuid.UUID
    settings: StoreSettings
    preload: PreloadFile

    def close(self) -> None:
        """Syncs, remembers the most recently used aggregates, and frees the folder."""
        try:
            self.preload.write(self.engine.known.recent(self.settings.preload_aggregates))
            self.engine.close()
        finally:
            try:
                close_directory(self.engine.directory)
            finally:
                self.lock.release()


def open_folder(
    path: Path, settings: StoreSettings, *, files: Files | None = None, directory: Path | None = None,
    clock: Callable[[], float] = time.time,
) -> OpenStore:  # fmt: skip
    """Opens or creates the store in `path`. `directory`: where LMDB lives, if not in the folder itself.

    Raises:
        FolderRefused, Corrupt
    """
    started = time.perf_counter()
    files = files or OsFiles()
    with _refusing(path):
        lock = _take_lock(files, path)
    try:
        with _refusing(path):
            identity = _identity(files, path, clock)
            folder = event_folder(files, path, identity)
            report = OpenReport()
            engine = _open_engine(path, folder, settings, directory or path / DIRECTORY, report, clock)
        preload = PreloadFile(files, path)
        with contextlib.suppress(EventStoreError):  # whatever cannot be read is met again by whoever asks for it
            engine.warm(preload.read())
        report.files, report.seconds = len(engine.files.headers), time.perf_counter() - started
        return OpenStore(engine, lock, report, identity, settings, preload)
    except BaseException:
        lock.release()
        raise


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turns what the operating system says about the folder into one line that names it."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        where = path if path.is_file() else error.filename or path
        raise FolderRefused(str(where), "is a file, not a folder; choose another path") from None
    except PermissionError as error:
        raise FolderRefused(str(path), f"cannot be written ({error.strerror}); check owner and mode") from None
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        hint = "; have it mounted writable, or choose another folder" if error.errno == errno.EROFS else ""
        raise FolderRefused(str(error.filename or path), f"{error.strerror or error}{hint}") from error


def _take_lock(files: Files, path: Path) -> Lock:
    try:
        files.make_folder(path)
    except FileNotFoundError as error:  # although all above it are there: a file system that takes no folders
        raise FolderRefused(str(path), f"cannot be created there ({error.strerror}); choose another folder") from None
    names = files.names(path)
    if STORE not in names and LOCK not in names:  # perhaps somebody else's folder: nothing is left behind in it
        _refuse_foreign(files, path, names, uuid.uuid4())
    return files.lock(path / LOCK)


def _identity(files: Files, path: Path, clock: Callable[[], float]) -> uuid.UUID:
    """The uuid of the store in `path`, which is created where there is none."""
    names = files.names(path)
    if STORE in names:
        files.sync_folder(path)  # the process that wrote it may have died before it did
        return read_identity(files, path)
    identity = uuid.uuid4()
    _refuse_foreign(files, path, names, identity)
    event_folder(files, path, identity).create()
    write_document(files, path / STORE, {"format": FORMAT, "store": str(identity), "created": int(clock() * 1_000_000)})
    return identity


def _refuse_foreign(files: Files, path: Path, names: Iterable[str], identity: uuid.UUID) -> None:
    """Raises FolderRefused where a folder without a store holds more than a store that was just begun leaves behind."""
    for name in names:
        begun = name == EVENTS_FOLDER and event_folder(files, path, identity).is_unused()
        if not (begun or name == LOCK or name.endswith(TEMPORARY)):
            raise FolderRefused(
                str(path / STORE), f"is missing, though the folder holds {name}; restore it, or choose an empty folder"
            )


def _open_engine(
    path: Path, folder: ChunkFolder, settings: StoreSettings, directory_path: Path, report: OpenReport,
    clock: Callable[[], float],
) -> Engine:  # fmt: skip
    headers = folder.headers()
    epoch = max((header.epoch for header in headers), default=1)
    event_files, tail = EventFiles(folder, settings.open_files_max), Tail()
    sync = settings.durability == "sync"
    front = FrontBuffer(record_space(settings.file_size_bytes), sync=sync)
    writer = ChunkWriter(
        folder, epoch=epoch, size_bytes=settings.file_size_bytes, preallocate_bytes=settings.preallocate_bytes,
        sync=sync, clock=clock,
    )  # fmt: skip
    front.resume_with_new_chunk(0, 1)
    sorted_files = max((header.number for header in headers if header.sorted), default=0)
    for header in headers:
        if header.number <= sorted_files:
            _add_sorted(event_files, header, report)
        elif header.completed:
            event_files.add(header)
            _load_completed(event_files, tail, header)
        else:
            event_files.add(header)
            _resume_ongoing(path, event_files, tail, header, writer, report)
    if headers and headers[-1].completed:
        writer.resume_behind(headers[-1])
    _resume_front(front, writer, headers, tail)
    _remove_orphans(folder, event_files.headers)
    directory = open_directory(directory_path, event_files, report)
    return Engine(
        event_files,
        tail,
        directory,
        KnownAggregates(settings.cached_bytes_max),
        writer,
        front,
        epoch=epoch,
        clock=clock,
    )


def _add_sorted(event_files: EventFiles, header: ChunkHeader, report: OpenReport) -> None:
    if not header.sorted:  # it is in front of one that is: not as we leave it, but easily put right
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


def _load_completed(event_files: EventFiles, tail: Tail, header: ChunkHeader) -> None:
    file = tail.begin(header.number, header.first_sequence)
    file.file = event_files.folder.files.open(event_files.folder.chunk_path(header.number))
    name = event_files.name(header.number)
    check_footer(file.file.read_at(header.end, FOOTER_BYTES), header, name)
    found, fault = read_records(
        file.file, name, RECORDS_FROM, header.end, header.first_sequence, HEADER_BYTES, TailLoader(tail, file, name)
    )
    if fault is not None:
        raise Corrupt(name, found.end, fault)
    if header != header.complete(found.end, found.next_sequence, found.records, found.checksum):
        raise Corrupt(name, found.end, "the records are not those that the header counts")


def _resume_ongoing(
    path: Path, event_files: EventFiles, tail: Tail, header: ChunkHeader, writer: ChunkWriter, report: OpenReport
) -> None:
    folder, name = event_files.folder, event_files.name(header.number)
    file = tail.begin(header.number, header.first_sequence)
    file.file = folder.files.open(folder.chunk_path(header.number))
    last, end = folder.read_document()
    known_end = end if last == header.number else RECORDS_FROM
    found = recover(file.file, name, header.first_sequence, HEADER_BYTES, known_end, TailLoader(tail, file, name))
    if found.torn:
        report.torn_bytes = len(found.torn)
        report.torn_copy = _keep_copy(folder.files, path, header.number, found)
        _log.warning(
            "%s: cut %d bytes of a torn batch at byte offset %d; a copy is in %s",
            name, report.torn_bytes, found.end, report.torn_copy,
        )  # fmt: skip
    writer.resume(header, found.end, found.next_sequence, found.records, found.checksum)
    writer.rewrite(found.durable, file.file.read_at(found.durable, found.end - found.durable))


def _keep_copy(files: Files, path: Path, number: int, found: Recovered) -> str:
    files.make_folder(path / CUT)
    taken = files.names(path / CUT)
    place = next(place for place in range(len(taken) + 1) if f"{number:010d}-{found.end}-{place}" not in taken)
    copy = path / CUT / f"{number:010d}-{found.end}-{place}"
    file = files.open(copy, create=True)
    try:
        file.write_at(0, [found.torn])
        file.sync()
    finally:
        file.close()
    files.sync_folder(path / CUT)
    return str(copy)


def _resume_front(front: FrontBuffer, writer: ChunkWriter, headers: list[ChunkHeader], tail: Tail) -> None:
    if not headers:
        return
    last = headers[-1]
    if last.completed:
        front.resume_with_new_chunk(last.number, last.last_sequence + 1)
    else:
        front.resume(last.number, writer.end, tail.current.next_sequence)


def _remove_orphans(folder: ChunkFolder, headers: list[ChunkHeader]) -> None:
    """Removes indexes of files that are not sorted: a crash between the two renames of a switch left them."""
    unsorted = {header.number for header in headers if not header.sorted}
    for name in folder.names_of(INDEX):
        number = int(name.partition(".")[0])
        if number in unsorted or number > len(headers):
            folder.files.remove(folder.path / name)
