"""Opens a broker's folder: creates it, or takes it up where the last process left it, cleanly or not.

    broker.json    format version, store uuid, node, created
    topics.json    topics and their queues
    offsets.json   consumer groups and how far they are
    lock           held as long as the broker is open
    messages/      message chunks, chunks.json, deleted.json
    queues/        queue chunks; derived
    index.json     how far the queue chunks can be believed; derived
    cut/           copies of torn tails that were cut

Only the last message chunk is scanned, and one more where its entries had not come to the queue chunks; everything, where the
index is missing or damaged.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eventstore.broker.engine import Engine
from eventstore.broker.loading import TailLoader
from eventstore.broker.memory import memory_used
from eventstore.broker.message import HEADER_BYTES
from eventstore.broker.message_files import MessageFiles
from eventstore.broker.progress import Progress
from eventstore.broker.queue_chunks import QueueChunks
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.recent import Recent
from eventstore.broker.sending import Sender
from eventstore.broker.settings import BrokerSettings
from eventstore.broker.state_record import QueueKey
from eventstore.broker.topics import Topics
from eventstore.chunks.documents import PREVIOUS, Tree, read_document, write_document
from eventstore.chunks.files import File, Files, Lock, OsFiles
from eventstore.chunks.folder import TEMPORARY, ChunkFolder, record_space
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.header import FOOTER_BYTES, MESSAGES, RECORDS_FROM, ChunkHeader, check_footer
from eventstore.chunks.recovery import Recovered, read_records, recover
from eventstore.chunks.writer import ChunkWriter
from eventstore.errors import Corrupt, FolderRefused

FORMAT: Final = 1
BROKER: Final = "broker.json"
TOPICS: Final = "topics.json"
OFFSETS: Final = "offsets.json"
LOCK: Final = "lock"
MESSAGES_FOLDER: Final = "messages"
ENDING: Final = "messages"
CUT: Final = "cut"
_WRITTEN_FIRST: Final = (LOCK, TOPICS, TOPICS + PREVIOUS, OFFSETS, OFFSETS + PREVIOUS)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenReport:
    """What opening found and did, for logs and people. `rebuilt`: queue chunks were missing that should have been there."""

    chunks: int = 0
    scanned: int = 0
    torn_bytes: int = 0
    torn_copy: str | None = None
    rebuilt: bool = False
    seconds: float = 0.0


@dataclass(slots=True)
class OpenBroker:
    """An engine together with what has to be let go when it is closed."""

    engine: Engine
    topics: Topics
    lock: Lock
    report: OpenReport
    uuid: uuid.UUID
    node: int
    path: Path
    files: Files
    progress: Progress
    settings: BrokerSettings

    def close(self) -> None:
        try:
            self.engine.close()
        finally:
            self.lock.release()


def open_broker_folder(
    path: Path, settings: BrokerSettings, *, files: Files | None = None, clock: Callable[[], float] = time.time,
    memory: Callable[[], float] = memory_used, monotonic: Callable[[], float] = time.monotonic,
) -> OpenBroker:  # fmt: skip
    """Opens or creates the broker in `path`.

    Raises:
        FolderRefused, Corrupt: nothing was changed then.
    """
    started = time.perf_counter()
    files = files or OsFiles()
    try:
        files.make_folder(path)
        lock = files.lock(path / LOCK)
    except (NotADirectoryError, FileExistsError, PermissionError) as error:
        raise FolderRefused(str(path), f"cannot be a folder of the broker ({error.strerror})") from None
    try:
        store, node = _identity(files, path, clock)
        topics = Topics(files, path / TOPICS)
        topics.load()
        progress = Progress(files, path / OFFSETS)
        progress.load()
        folder = _message_folder(files, path, store)
        message_files = MessageFiles(
            folder, open_files_max=settings.open_files_max, release_above=settings.release_above,
            map_below=settings.map_below, idle_release_s=settings.idle_release_s, memory=memory, clock=monotonic,
        )  # fmt: skip
        report = OpenReport()
        index = QueueChunks(files, path, store, settings.queue_chunk_entries)
        engine = _Opening(path, settings, message_files, index, report).open(topics, node, clock)
        topics.before_shown = engine.add_queues
        progress.begin()
        report.seconds = time.perf_counter() - started
        return OpenBroker(engine, topics, lock, report, store, node, path, files, progress, settings)
    except BaseException:
        lock.release()
        raise


def _message_folder(files: Files, path: Path, store: uuid.UUID) -> ChunkFolder:
    return ChunkFolder(files, path / MESSAGES_FOLDER, MESSAGES, ENDING, store, deletable=True)


def _identity(files: Files, path: Path, clock: Callable[[], float]) -> tuple[uuid.UUID, int]:
    """Store uuid and node of the broker in `path`, which is created where there is none."""
    names = files.names(path)
    if BROKER in names:
        files.sync_folder(path)  # the process that wrote it may have died before it did
        return _read_identity(files, path)
    store, node = uuid.uuid4(), 1 + secrets.randbelow(65_535)
    folder = _message_folder(files, path, store)
    for name in names:
        begun = name == MESSAGES_FOLDER and folder.is_unused()
        if not (begun or name in _WRITTEN_FIRST or name.endswith(TEMPORARY)):
            raise FolderRefused(
                str(path / BROKER), f"is missing, though the folder holds {name}; restore it, or choose an empty folder"
            )
    folder.create()
    Topics(files, path / TOPICS).save()
    progress = Progress(files, path / OFFSETS)
    progress.write(progress.tree())
    document: Tree = {"format": FORMAT, "store": str(store), "node": node, "created": int(clock() * 1_000_000)}
    write_document(files, path / BROKER, document)  # last: where it is, the rest must be too
    return store, node


def _read_identity(files: Files, path: Path) -> tuple[uuid.UUID, int]:
    document = read_document(files, path / BROKER)
    if document.get("format") != FORMAT:
        raise FolderRefused(
            str(path / BROKER), f"format {document.get('format')}; this program knows format {FORMAT}. Use a newer one"
        )
    node = document.get("node")
    try:
        store = uuid.UUID(str(document.get("store")))
    except ValueError:
        store = None
    if store is None or not isinstance(node, int) or not 0 < node < 65_536:
        raise Corrupt(str(path / BROKER), 0, f"no uuid and node of a broker; the copy before is {BROKER}{PREVIOUS}")
    return store, node


class _Opening:
    """The steps of an opening, and what they hand on to each other."""

    def __init__(
        self, path: Path, settings: BrokerSettings, message_files: MessageFiles, index: QueueChunks, report: OpenReport
    ) -> None:
        self._path = path
        self._settings = settings
        self._message_files = message_files
        self._folder = message_files.folder
        self._index = index
        self._report = report
        self._last_time = 0
        sync = settings.durability == "sync"
        self._front = FrontBuffer(record_space(settings.chunk_size_bytes), sync=sync)
        self._front.resume_with_new_chunk(0, 1)

    def open(self, topics: Topics, node: int, clock: Callable[[], float]) -> Engine:
        try:
            headers = self._folder.headers()
        except FileNotFoundError as error:
            raise FolderRefused(str(error.filename or self._folder.path), "is missing; restore it") from None
        epoch = max((header.epoch for header in headers), default=1)
        settings = self._settings
        writer = ChunkWriter(
            self._folder, epoch=epoch, size_bytes=settings.chunk_size_bytes, preallocate_bytes=settings.preallocate_bytes,
            sync=settings.durability == "sync", clock=clock,
        )  # fmt: skip
        for header in headers:
            self._message_files.put(header)
        keys = [(topic.id, number) for topic in topics.by_name.values() for number in topic.queues]
        queues = {key: QueueLog(key) for key in keys}
        indexed = self._load(headers, queues, writer) if headers else 0
        self._report.chunks = len(headers)
        recent = Recent(settings.recent_messages_max, settings.recent_bytes_max)
        sender = Sender(self._front, queues, epoch=epoch, node=node, last_time=self._last_time, clock=clock)
        return Engine(self._message_files, self._index, writer, self._front, queues, recent, sender, indexed, clock)

    def _load(self, headers: list[ChunkHeader], queues: dict[QueueKey, QueueLog], writer: ChunkWriter) -> int:
        """Brings queues, writer and front buffer to where the log ends. Returns up to which chunk the index is good."""
        first, last = headers[0], headers[-1]
        indexed = self._index.indexed()
        begins = self._message_files.state(first.number) or {}
        for key, log in queues.items():
            log.first = begins.get(key, 0)
            log.begin_at(log.first)
        scan_from = self._scan_from(headers, min(indexed + 1, last.number))
        if scan_from > first.number and not self._is_covered(scan_from, queues):
            _log.warning("%s: the queue index is not whole, it is built anew from the messages", self._path)
            scan_from, self._report.rebuilt = first.number, True
        for header in headers:
            if header.number >= scan_from:
                self._scan(header, queues, writer, begins=header.number == scan_from)
        if last.completed:
            writer.resume_behind(last)
            self._front.resume_with_new_chunk(last.number, last.last_sequence + 1)
        return scan_from - 1

    def _scan_from(self, headers: list[ChunkHeader], wanted: int) -> int:
        """The chunk to begin with: one whose state record is there. An ongoing one may have been begun and no more."""
        first = headers[0].number
        wanted = max(wanted, first)
        if wanted > first and wanted == headers[-1].number and self._message_files.state(wanted) is None:
            return wanted - 1
        return wanted

    def _is_covered(self, scan_from: int, queues: dict[QueueKey, QueueLog]) -> bool:
        state = self._message_files.state(scan_from) or {}
        return all(self._index.covers(key, log.first, state.get(key, 0)) for key, log in queues.items())

    def _scan(self, header: ChunkHeader, queues: dict[QueueKey, QueueLog], writer: ChunkWriter, *, begins: bool) -> None:
        name = self._message_files.name(header.number)
        loader = TailLoader(queues, name, begins=begins)
        file = self._folder.files.open(self._folder.chunk_path(header.number))
        try:
            if header.completed:
                _read_completed(file, name, header, loader)
            else:
                self._resume(file, name, header, loader, writer)
        finally:
            file.close()
        self._report.scanned += 1
        self._last_time = max(self._last_time, loader.last_time)

    def _resume(self, file: File, name: str, header: ChunkHeader, loader: TailLoader, writer: ChunkWriter) -> None:
        last, end = self._folder.read_document()
        known_end = end if last == header.number else RECORDS_FROM
        found = recover(file, name, header.first_sequence, HEADER_BYTES, known_end, loader)
        if found.torn:
            self._report.torn_bytes = len(found.torn)
            self._report.torn_copy = self._keep_copy(header.number, found)
            _log.warning(
                "%s: cut %d bytes of a torn batch at byte offset %d; a copy is in %s",
                name, len(found.torn), found.end, self._report.torn_copy,
            )  # fmt: skip
        writer.resume(header, found.end, found.next_sequence, found.records, found.checksum)
        durable = min(max(found.durable, known_end), found.end)
        writer.rewrite(durable, file.read_at(durable, found.end - durable))
        self._front.resume(header.number, found.end, found.next_sequence)

    def _keep_copy(self, number: int, found: Recovered) -> str:
        files, folder = self._folder.files, self._path / CUT
        files.make_folder(folder)
        taken = files.names(folder)
        place = next(place for place in range(len(taken) + 1) if f"{number:010d}-{found.end}-{place}" not in taken)
        copy = folder / f"{number:010d}-{found.end}-{place}"
        file = files.open(copy, create=True)
        try:
            file.write_at(0, [found.torn])
            file.sync()
        finally:
            file.close()
        files.sync_folder(folder)
        return str(copy)


def _read_completed(file: File, name: str, header: ChunkHeader, loader: TailLoader) -> None:
    check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
    found, fault = read_records(file, name, RECORDS_FROM, header.end, header.first_sequence, HEADER_BYTES, loader)
    if fault is not None:
        raise Corrupt(name, found.end, fault)
    if header != header.complete(found.end, found.next_sequence, found.records, found.checksum):
        raise Corrupt(name, found.end, "the records are not those that the header counts")
