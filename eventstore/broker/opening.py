"""Opens a broker's folder: creates it, or recovers the state in which the last process left it.

    broker.json    format version, store uuid, node, created
    topics.json    topics and their queues
    offsets.json   committed offsets of consumer groups
    lock           held as long as the broker is open
    messages/      message chunks, chunks.json, deleted.json
    queues/        queue chunks; derived
    index.json     the last message chunk that is in the queue chunks; derived
    cut/           copies of torn tails that were cut

Only the last message chunk is scanned, and the one before it if its entries are not in queue chunks yet; all of them, if the
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

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.log.memory_pressure import memory_used
from eventstore.broker.log.message_files import MessageFiles
from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_chunks import QueueChunks
from eventstore.broker.log.queue_loading import TailLoader
from eventstore.broker.log.recent_messages import RecentMessages
from eventstore.broker.log.sender import Sender
from eventstore.broker.topics import Topics
from eventstore.chunks.documents import PREVIOUS, Document
from eventstore.chunks.files import Files, Lock, OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import MESSAGES, ChunkHeader
from eventstore.chunks.opening import OpenedChunks, OwnedFolder, refusing
from eventstore.errors import Corrupt
from eventstore.records.message import FRAMING
from eventstore.records.state_record import QueueKey
from eventstore.settings.broker import BrokerSettings

FORMAT: Final = 1
BROKER: Final = "broker.json"
TOPICS: Final = "topics.json"
OFFSETS: Final = "offsets.json"
MESSAGES_FOLDER: Final = "messages"
ENDING: Final = "messages"
_WRITTEN_FIRST: Final = (TOPICS, TOPICS + PREVIOUS, OFFSETS, OFFSETS + PREVIOUS)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The identity of a new broker: the uuid of its log, and the `node` of its message ids. Given where replicas have the
    same.
    """

    store: uuid.UUID
    node: int


@dataclass(slots=True)
class BrokerOpenReport:
    """The result of opening, for logs.

    Attributes:
        rebuilt: queue chunks were missing, and the index was built from the messages.
    """

    chunks: int = 0
    scanned: int = 0
    torn_bytes: int = 0
    torn_copy: str | None = None
    rebuilt: bool = False
    seconds: float = 0.0


@dataclass(slots=True)
class OpenBroker:
    """An engine, with the resources to release when it is closed."""

    engine: MessageEngine
    topics: Topics
    lock: Lock
    report: BrokerOpenReport
    uuid: uuid.UUID
    node: int
    path: Path
    files: Files
    offsets_document: OffsetsDocument
    settings: BrokerSettings

    def close(self) -> None:
        try:
            self.engine.close()
        finally:
            self.lock.release()


def open_broker_folder(
    path: Path,
    settings: BrokerSettings,
    *,
    files: Files | None = None,
    clock: Callable[[], float] = time.time,
    memory: Callable[[], float] = memory_used,
    monotonic: Callable[[], float] = time.monotonic,
    identity: BrokerIdentity | None = None,
    epoch: int | None = None,
) -> OpenBroker:
    """Opens or creates the broker in `path`. `identity`: of a new one; None: chosen. `epoch`: of the leadership that begins, if
    one does.

    Raises:
        FolderRefused, Corrupt: nothing was changed.
    """
    started = time.perf_counter()
    files = files or OsFiles()
    own = OwnedFolder(files, path, BROKER, FORMAT, lambda store: message_folder(files, path, store), _WRITTEN_FIRST)
    with refusing(path):
        lock = own.lock()
    try:
        with refusing(path):
            store, node = _identity(own, clock, identity)
            topics = Topics(files, path / TOPICS)
            topics.load()
            offsets_document = OffsetsDocument(files, path / OFFSETS)
            offsets_document.load()
            message_files = MessageFiles(
                message_folder(files, path, store),
                open_files_max=settings.open_files_max,
                release_above=settings.release_above,
                map_below=settings.map_below,
                idle_release_s=settings.idle_release_s,
                memory=memory,
                clock=monotonic,
            )
            report = BrokerOpenReport()
            index = QueueChunks(files, path, store, settings.queue_chunk_entries)
            engine = _Opening(settings, message_files, index, report, clock, epoch).open(topics, node)
        topics.before_visible = engine.add_queues
        offsets_document.begin()
        report.seconds = time.perf_counter() - started
        return OpenBroker(engine, topics, lock, report, store, node, path, files, offsets_document, settings)
    except BaseException:
        lock.release()
        raise


def message_folder(files: Files, path: Path, store: uuid.UUID) -> ChunkFolder:
    return ChunkFolder(files, path / MESSAGES_FOLDER, MESSAGES, ENDING, store, deletable=True)


def _identity(own: OwnedFolder, clock: Callable[[], float], chosen: BrokerIdentity | None) -> tuple[uuid.UUID, int]:
    """Returns store uuid and node of the broker; initialises a folder without a broker."""

    def create() -> Document:
        Topics(own.files, own.path / TOPICS).save()
        offsets_document = OffsetsDocument(own.files, own.path / OFFSETS)
        offsets_document.write(offsets_document.tree())
        return {"node": 1 + secrets.randbelow(65_535) if chosen is None else chosen.node}

    store, document = own.identity(create, clock, None if chosen is None else chosen.store)
    node = document.get("node")
    if not isinstance(node, int) or not 0 < node < 65_536:
        raise Corrupt(str(own.path / BROKER), 0, f"not the node of a broker; the previous copy is {BROKER}{PREVIOUS}")
    return store, node


class _Opening:
    """The steps of opening a broker's log, and their shared state."""

    def __init__(
        self,
        settings: BrokerSettings,
        message_files: MessageFiles,
        index: QueueChunks,
        report: BrokerOpenReport,
        clock: Callable[[], float],
        epoch: int | None,
    ) -> None:
        self._settings = settings
        self._message_files = message_files
        self._folder = message_files.folder
        self._index = index
        self._report = report
        self._clock = clock
        self._last_time = 0
        self._chunks = OpenedChunks(
            self._folder,
            FRAMING,
            size_bytes=settings.chunk_size_bytes,
            preallocate_bytes=settings.preallocate_bytes,
            sync=settings.durability == "sync",
            clock=clock,
            epoch=epoch,
        )

    def open(self, topics: Topics, node: int) -> MessageEngine:
        settings, chunks, clock = self._settings, self._chunks, self._clock
        for header in chunks.headers:
            self._message_files.put(header)
        keys = [(topic.id, number) for topic in topics.by_name.values() for number in topic.queues]
        queues = {key: QueueLog(key) for key in keys}
        indexed = self._load(chunks.headers, queues) if chunks.headers else 0
        self._report.chunks = len(chunks.headers)
        recent = RecentMessages(settings.recent_messages_max, settings.recent_bytes_max)
        sender = Sender(chunks.front, queues, epoch=chunks.epoch, node=node, last_time=self._last_time, clock=clock)
        return MessageEngine(
            self._message_files, self._index, chunks.writer, chunks.front, queues, recent, sender, indexed, clock
        )

    def _load(self, headers: list[ChunkHeader], queues: dict[QueueKey, QueueLog]) -> int:
        """Recovers queues, writer and front buffer at the end of the log. Returns the last chunk that is indexed."""
        first, last = headers[0], headers[-1]
        indexed = self._index.indexed()
        begins = self._state(first) or {}
        for key, log in queues.items():
            log.first = begins.get(key, 0)
            log.begin_at(log.first)
        scan_from = self._scan_from(headers, min(indexed + 1, last.number))
        if scan_from > first.number and not self._is_covered(scan_from, queues):
            _log.warning("%s: the queue index is incomplete; rebuilding it from the messages", self._folder.path.parent)
            scan_from, self._report.rebuilt = first.number, True
        if scan_from == first.number and (last.number > first.number or indexed < first.number - 1):
            self._index.begin_anew(queues, first.number - 1)
        for header in headers:
            if header.number >= scan_from:
                self._scan(header, queues, begins=header.number == scan_from)
        self._chunks.finish()
        if self._chunks.torn is not None:
            self._report.torn_bytes, self._report.torn_copy = self._chunks.torn.bytes, self._chunks.torn.copy
        return scan_from - 1

    def _scan_from(self, headers: list[ChunkHeader], wanted: int) -> int:
        """Returns the first chunk to scan: one with a state record, which the current chunk may not have yet."""
        first = headers[0].number
        wanted = max(wanted, first)
        if wanted > first and wanted == headers[-1].number and self._state(headers[-1]) is None:
            return wanted - 1
        return wanted

    def _state(self, header: ChunkHeader) -> dict[QueueKey, int] | None:
        """Returns the next offset of each queue when the chunk was begun; None if its state record was never written, or is
        torn in the chunk that was being written: recovery judges it.

        Raises:
            Corrupt, ReadFailed
        """
        try:
            return self._message_files.state(header.number)
        except Corrupt:
            if header.completed:
                raise
            return None

    def _is_covered(self, scan_from: int, queues: dict[QueueKey, QueueLog]) -> bool:
        state = self._message_files.state(scan_from) or {}
        return all(self._index.covers(key, log.first, state.get(key, 0)) for key, log in queues.items())

    def _scan(self, header: ChunkHeader, queues: dict[QueueKey, QueueLog], *, begins: bool) -> None:
        loader = TailLoader(queues, self._message_files.name(header.number), begins=begins)
        file = self._folder.files.open(self._folder.chunk_path(header.number))
        try:
            self._chunks.load(header, file, loader)
        finally:
            file.close()
        self._report.scanned += 1
        self._last_time = max(self._last_time, loader.last_time)
