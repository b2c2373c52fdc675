"""The engine of the message log, without threads, tasks or sockets. The modules above it decide when to call it.

Three kinds of callers:
- the owner's thread (an event loop) calls `send`, `take`, `mark_written`, `roll_back`, `trim`, and everything that only reads
  memory;
- one writer at a time, on any thread, calls `write` and `sync_now`;
- other threads pull and look up; they call `index_completed` and `delete_chunks` one at a time.

A message is visible to consumers once it is written: with durability `sync` it is durable then; with `async` it is in the page
cache, and durable after the next flush.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from eventstore.broker.log.message_files import MessageFiles
from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_chunks import QueueChunks
from eventstore.broker.log.queue_reader import QueueReader
from eventstore.broker.log.recent_messages import RecentMessages
from eventstore.broker.log.sender import Sender, SendOutcome
from eventstore.broker.topics import Topic
from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.errors import EventStoreError
from eventstore.records.message import HEADER, RawMessage, position_of
from eventstore.records.state_record import QueueKey

_OWNER: Final = HEADER.part("topic_id", "queue")


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of writing a segment: the queues that have new messages, and the chunks it completed."""

    queues: set[QueueKey]
    completed: list[ChunkHeader]


class MessageEngine:
    """One open message log. Build it with `opening.open_broker_folder`.

    Attributes:
        queues: of all topics, by topic id and number.
    """

    def __init__(
        self,
        files: MessageFiles,
        index: QueueChunks,
        writer: ChunkWriter,
        front: FrontBuffer,
        queues: dict[QueueKey, QueueLog],
        recent: RecentMessages,
        sender: Sender,
        indexed: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.files = files
        self.index = index
        self.writer = writer
        self.front = front
        self.queues = queues
        self.recent = recent
        self.sender = sender
        self.indexed = indexed
        self.clock = clock
        self.reader = QueueReader(files, index, recent)
        self.visible_number = front.next_sequence - 1
        self.visible_position = position_of(front.chunk, front.end if front.chunk else 0)
        self.durable_position = self.visible_position
        self._in_flight: deque[tuple[Segment, set[QueueKey]]] = deque()

    @property
    def failed(self) -> EventStoreError | None:
        """The error for which no more messages are accepted, if there is one."""
        return self.sender.failed

    @property
    def barrier(self) -> int:
        """The number of the last accepted message: once it is visible, all outcomes so far may be reported."""
        return self.front.next_sequence - 1

    def send(self, topic: Topic, messages: Sequence[RawMessage], *, own: bool = False) -> list[SendOutcome]:
        """Gives each valid message its place, and puts it into the front buffer. An invalid message is refused alone.

        Raises:
            Poisoned: no more messages are accepted.
            UnknownTopic: the topic was deleted.
        """
        return self.sender.append_batch(topic, messages, own=own)

    def add_queues(self, topic: Topic) -> None:
        """Adds the queues of a topic that are new."""
        for number in topic.queues:
            self.queues.setdefault((topic.id, number), QueueLog((topic.id, number)))

    # -- writing ------------------------------------------------------------------------------------------------------

    def take(self) -> Segment | None:
        """Swaps the buffers; returns the collected messages, for `write` and then for `mark_written` or `roll_back`."""
        segment = self.front.take()
        if segment is not None:
            changed_queues, self.sender.changed_queues = self.sender.changed_queues, set()
            self._in_flight.append((segment, changed_queues))
        return segment

    def write(self, segment: Segment) -> None:
        """Writes and, with durability `sync`, syncs. Raises StorageFull, Overloaded or Poisoned."""
        self.writer.write(segment)

    def mark_written(self, segment: Segment, *, durable: bool) -> WriteResult:
        """Makes the messages of a written segment visible."""
        first, changed_queues = self._in_flight[0]
        assert first is segment
        completed = self._take_completed(segment.chunk) if self.writer.completed else []
        if segment.begins_chunk:
            self._begun(segment)
        end = position_of(segment.chunk, segment.end)
        if durable:
            self.front.mark_durable(segment.chunk, segment.end)
            self.durable_position = end
        base = position_of(segment.chunk, segment.offset)
        positions = list(accumulate(map(len, segment.buffers[:-1]), initial=base))
        self.recent.add(positions, segment.buffers, segment.end - segment.offset)
        self._in_flight.popleft()
        if self.front.segments or self._in_flight:  # a new chunk began within a batch: its queues continue in the next segment
            self.sender.changed_queues |= changed_queues
        self.visible_number = segment.next_sequence - 1
        self.visible_position = end  # last: readers on threads need all of the above
        return WriteResult(changed_queues, completed)

    def _begun(self, segment: Segment) -> None:
        folder, created = self.files.folder, int(self.clock() * 1_000_000)
        self.files.put(ChunkHeader(folder.kind, segment.chunk, folder.store, 1, segment.first_sequence, created))

    def _take_completed(self, before: int | None = None) -> list[ChunkHeader]:
        completed = self.writer.take_completed(before)
        for header in completed:
            self.files.put(header)
        return completed

    def roll_back(self, error: EventStoreError) -> list[ChunkHeader]:
        """Removes all messages that are not visible yet from memory, after a failed write.

        After StorageFull, messages may be sent again; any other error is final. Returns the chunks that were completed
        nevertheless.
        """
        for segment in reversed([*(each for each, _ in self._in_flight), *self.front.segments]):
            for raw in reversed(segment.buffers):
                topic, queue = _OWNER.unpack_from(raw)
                log = self.queues.get((topic, queue))
                if log is not None:
                    log.undo_last()
        self._in_flight.clear()
        self.sender.changed_queues = set()
        completed = self._take_completed()
        last = self.files.headers.get(self.files.last)
        if last is not None and not last.completed:
            self.front.resume(last.number, self.writer.end, self.visible_number + 1)
        else:
            self.front.resume_with_new_chunk(self.files.last, self.visible_number + 1)
        if not error.retriable:
            self.sender.failed = error
        return completed

    def sync_now(self) -> tuple[int, int]:
        """For durability `async`: makes everything written so far durable. Pass the result to `mark_synced`."""
        return self.writer.sync_now()

    def mark_synced(self, chunk: int, end: int) -> None:
        """Takes the result of `sync_now`."""
        self.front.mark_durable(chunk, end)
        self.durable_position = max(self.durable_position, position_of(chunk, end))

    # -- the queue index ----------------------------------------------------------------------------------------------

    def index_completed(self) -> int:
        """Writes the entries of completed chunks to the queue chunks; afterwards `trim` drops them from memory.

        Raises OSError: nothing is lost; the entries stay in memory until the next time.
        """
        through = max((number for number, header in self.files.headers.items() if header.completed), default=0)
        if through <= self.indexed:
            return self.indexed
        boundary = position_of(through + 1, 0)
        for key, log in list(self.queues.items()):
            tail = log.tail
            count = tail.below(boundary)
            if count:
                self.index.write(
                    key, tail.base, tail.positions[:count], tail.lengths[:count], tail.tags[:count], tail.keys[:count]
                )
        self.index.set_indexed(through)
        return through

    def trim(self, indexed: int) -> None:
        """Drops the entries of message chunks up to `indexed` from memory: they are in queue chunks."""
        self.indexed = max(self.indexed, indexed)
        for log in list(self.queues.values()):  # another thread may add queues
            log.drop_below(position_of(indexed + 1, 0))

    # -- deletion -----------------------------------------------------------------------------------------------------

    def forget_chunks(self, through: int, begins: dict[QueueKey, int]) -> None:
        """Prepares the deletion of the oldest chunks. `begins`: where each queue begins then (the state of the next chunk)."""
        for key, log in list(self.queues.items()):
            log.first = max(log.first, begins.get(key, 0))
        self.files.forget(through)

    def delete_chunks(self, through: int) -> None:
        """Deletes forgotten chunks, and queue chunks with entries for nothing else. Raises OSError."""
        self.files.folder.delete_through(through)
        for key, log in list(self.queues.items()):
            self.index.remove_below(key, min(log.first, log.tail.base))

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            self.files.close()
