"""The message log without threads, tasks and sockets. Everything above it only decides who calls it when.

Three kinds of callers, and what they may call:
- the owner's thread (an event loop): `send`, `take`, `mark_written`, `roll_back`, `trim`, and all that reads memory only;
- the writer, one at a time, on any thread: `write`, `sync_now`;
- others on any thread: pulls and look-ups; `index_completed` and `delete_chunks` one at a time.

A message is shown to consumers when it was written: with durability `sync` it is durable then; with `async` it is in the page
cache, and durable after the next flush.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from eventstore.broker.message import HEADER, RawMessage, position_of
from eventstore.broker.message_files import MessageFiles
from eventstore.broker.pulling import Puller
from eventstore.broker.queue_chunks import QueueChunks
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.recent import Recent
from eventstore.broker.sending import Outcome, Sender
from eventstore.broker.state_record import QueueKey
from eventstore.broker.topics import Topic
from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writer import ChunkWriter
from eventstore.errors import EventStoreError


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a segment: the queues that have new messages, and the chunks that were completed by it."""

    queues: set[QueueKey]
    completed: list[ChunkHeader]


class Engine:
    """One open message log. Build it with `opening.open_broker_folder`. `queues`: of all topics, by topic id and number."""

    def __init__(
        self, files: MessageFiles, index: QueueChunks, writer: ChunkWriter, front: FrontBuffer,
        queues: dict[QueueKey, QueueLog], recent: Recent, sender: Sender, indexed: int,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.files = files
        self.index = index
        self.writer = writer
        self.front = front
        self.queues = queues
        self.recent = recent
        self.sender = sender
        self.indexed = indexed
        self.clock = clock
        self.puller = Puller(files, index, recent)
        self.visible_number = front.next_sequence - 1
        self.visible_position = position_of(front.chunk, front.end if front.chunk else 0)
        self._in_flight: deque[tuple[Segment, set[QueueKey]]] = deque()

    @property
    def failed(self) -> EventStoreError | None:
        """Why no more messages are accepted, if so."""
        return self.sender.failed

    @property
    def barrier(self) -> int:
        """The number of the last message that was given a place: once it is visible, everything so far may be told."""
        return self.front.next_sequence - 1

    def send(self, topic: Topic, messages: Sequence[RawMessage], *, own: bool = False) -> list[Outcome]:
        """Gives each good message its place, and puts it into the front buffer. Never raises for what a message contains.

        Raises:
            Poisoned: no more messages are accepted.
            UnknownTopic: it was deleted.
        """
        return self.sender.append_batch(topic, messages, own=own)

    def add_queues(self, topic: Topic) -> None:
        """The topic may have queues that are new."""
        for number in topic.queues:
            self.queues.setdefault((topic.id, number), QueueLog((topic.id, number)))

    # -- writing ------------------------------------------------------------------------------------------------------

    def take(self) -> Segment | None:
        """Swaps the buffers: what was collected, to be given to `write`, and then to `mark_written` or `roll_back`."""
        segment = self.front.take()
        if segment is not None:
            touched, self.sender.touched = self.sender.touched, set()
            self._in_flight.append((segment, touched))
        return segment

    def write(self, segment: Segment) -> None:
        """Writes and, where durability is `sync`, syncs. Raises StorageFull, Overloaded or Poisoned."""
        self.writer.write(segment)

    def mark_written(self, segment: Segment, *, durable: bool) -> Written:
        """The segment was written: its messages become visible."""
        first, touched = self._in_flight[0]
        assert first is segment
        completed = self._take_completed()
        if segment.begins_chunk:
            self._begun(segment)
        if durable:
            self.front.mark_durable(segment.chunk, segment.end)
        base = position_of(segment.chunk, segment.offset)
        positions = list(accumulate(map(len, segment.buffers[:-1]), initial=base))
        self.recent.add(positions, segment.buffers, segment.end - segment.offset)
        self._in_flight.popleft()
        if self.front.segments or self._in_flight:  # a roll in the middle of a batch: its queues go on in the next segment
            self.sender.touched |= touched
        self.visible_number = segment.next_sequence - 1
        self.visible_position = position_of(segment.chunk, segment.end)  # last: readers on threads need all of the above
        return Written(touched, completed)

    def _begun(self, segment: Segment) -> None:
        folder, created = self.files.folder, int(self.clock() * 1_000_000)
        self.files.put(ChunkHeader(folder.kind, segment.chunk, folder.store, 1, segment.first_sequence, created))

    def _take_completed(self) -> list[ChunkHeader]:
        completed, self.writer.completed = self.writer.completed, []
        for header in completed:
            self.files.put(header)
        return completed

    def roll_back(self, error: EventStoreError) -> list[ChunkHeader]:
        """A write failed: every message that is not visible yet is taken back out of memory.

        After StorageFull messages may be sent again; any other error is final. Returns the chunks that were completed all
        the same.
        """
        for segment in reversed([*(each for each, _ in self._in_flight), *self.front.segments]):
            for raw in reversed(segment.buffers):
                topic, queue = HEADER.unpack_from(raw)[12:14]
                log = self.queues.get((topic, queue))
                if log is not None:
                    log.undo_last()
        self._in_flight.clear()
        self.sender.touched = set()
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
        """For durability `async`: what was written so far is durable on return. The result is for `mark_synced`."""
        return self.writer.sync_now()

    def mark_synced(self, chunk: int, end: int) -> None:
        """`sync_now` returned these."""
        self.front.mark_durable(chunk, end)

    # -- the queue index ----------------------------------------------------------------------------------------------

    def index_completed(self) -> int:
        """Writes the entries of chunks that were completed to the queue chunks; then `trim` lets go of them in memory.

        Raises OSError: nothing is lost, the entries stay in memory and are written the next time.
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
        """Everything up to this message chunk is in the queue chunks: memory lets go of it."""
        self.indexed = max(self.indexed, indexed)
        for log in list(self.queues.values()):  # another thread may add some
            log.drop_below(position_of(indexed + 1, 0))

    # -- deletion -----------------------------------------------------------------------------------------------------

    def forget_chunks(self, through: int, begins: dict[QueueKey, int]) -> None:
        """The oldest chunks are about to be deleted. `begins`: where each queue begins then (the state of the next chunk)."""
        for key, log in list(self.queues.items()):
            log.first = max(log.first, begins.get(key, 0))
        self.files.forget(through)

    def delete_chunks(self, through: int) -> None:
        """Deletes chunks that were forgotten, and the queue chunks that lead to nothing else. Raises OSError."""
        self.files.folder.delete_through(through)
        for key, log in list(self.queues.items()):
            self.index.remove_below(key, min(log.first, log.tail.base))

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            self.files.close()
