"""Pulls: reads from many queues at once that wait for messages without polling.

A waiting pull costs nothing until a message arrives, or a message in a retry queue is due; then only the queues with news are
read. A `PendingPull` keeps its state from one read to the next. The first read may be done at once, without a task, since the
latest messages are in memory, and so is whether a queue has new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, NamedTuple, TypeAlias

import trio

from eventstore.broker.due_times import DueTimes
from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.broker.pending_pull import NOTHING, PendingPull, PendingQueue, Waiter, Waiters, wait_deadline
from eventstore.broker.retry_policy import delay_s
from eventstore.broker.statistics import Statistics
from eventstore.broker.topics import Topic, Topics
from eventstore.chunks.files import NotCached
from eventstore.errors import Closed, InvalidArgument
from eventstore.fields import check_int
from eventstore.records.state_record import QueueKey
from eventstore.records.tag_filter import TagFilter, parse_tags
from eventstore.records.topic_names import RETRY
from eventstore.timing.work_time import on_thread

MESSAGES_MAX: Final = 10_000
PULL_BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_SECONDS_MAX: Final = 60.0
WANTS_MAX: Final = 1_000
_IN_PLACE_BYTES_MAX: Final = 512 * 1024
_TURN_BYTES: Final = 512 * 1024  # read from memory before other tasks get their turn
_TURN_ENTRIES: Final = 16_384  # visited before other tasks get their turn
_ENTRIES_OF_A_QUEUE: Final = 16  # the cost of a queue without new messages, in entries
_READERS_MAX: Final = 16
_READING_SECONDS: Final = 0.02

Making: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""A context that is held while messages are read, and left once some are found or there are none."""


class Want(NamedTuple):
    """One queue of a pull: the first offset and the tags wanted."""

    topic: str
    queue: int
    offset: int
    tags: str | None = None


class Pulls:
    """All pulls of a broker. Belongs to one trio run; reads that may wait for the disk run on threads, with their own limit.

    `delays_of` returns the delays of the queues of a retry topic.
    """

    def __init__(
        self, engine: MessageEngine, topics: Topics, statistics: Statistics, delays_of: Callable[[str], Sequence[float]]
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._statistics = statistics
        self._delays_of = delays_of
        self._due = DueTimes()
        self._readers = trio.CapacityLimiter(_READERS_MAX)
        self._waiters = Waiters()
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of queues that pulls wait for."""
        return len(self._waiters)

    async def run(self) -> None:
        """Ends pulls whose time is over, until cancelled."""
        await self._waiters.run()

    def wake(self, queues: set[QueueKey]) -> None:
        """Wakes the pulls that wait for these queues, which have new messages."""
        self._waiters.wake(queues)

    def close(self) -> None:
        """Ends all waiting pulls with Closed."""
        self._closed = True
        self._waiters.wake_all()

    async def pull(
        self,
        wants: Sequence[Want],
        *,
        messages_max: int = 64,
        bytes_max: int = 1024 * 1024,
        wait_s: float = 0.0,
    ) -> list[QueueRead]:
        """Returns the next messages of some queues, one `QueueRead` for each, within about `messages_max` and `bytes_max`.

        If there are none, waits up to `wait_s` for one; a wait of 10 seconds or more may end half a second early. Messages
        that do not match a filter are skipped: continue at `next_offset` even if `count` is 0. An offset outside its queue
        is moved into it, which is reported at once.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument, Corrupt, ReadFailed, Closed
        """
        await trio.lowlevel.checkpoint()
        return await self.finish(self.begin(wants, messages_max=messages_max, bytes_max=bytes_max, wait_s=wait_s))

    def begin(
        self,
        wants: Sequence[tuple[str, int, int, str | None]],
        *,
        messages_max: int,
        bytes_max: int,
        wait_s: float,
        owner: object = None,
    ) -> PendingPull:
        """Begins a pull, without reading. Pass it to `answer_now`, to `finish`, or to both in this order. One message may wake
        many pulls: they run in rotation over their owners.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument, Closed
        """
        check_int("messages_max", messages_max, 1, MESSAGES_MAX)
        check_int("bytes_max", bytes_max, 1, PULL_BYTES_MAX)
        check_int("wants", len(wants), 1, WANTS_MAX)
        self._check_open()
        deadline = wait_deadline(trio.current_time(), min(max(wait_s, 0.0), WAIT_SECONDS_MAX))
        queues = list(self._pending_queues(wants))
        if len({each.log.key for each in queues}) < len(queues):
            raise InvalidArgument("a queue is named twice; a pull reads each queue from one offset", field="queue")
        return PendingPull(queues, messages_max, bytes_max, deadline, owner)

    def _pending_queues(self, wants: Sequence[tuple[str, int, int, str | None]]) -> Iterator[PendingQueue]:
        filters: dict[str | None, TagFilter | None] = {None: None}
        topics: dict[str, Topic] = {}
        for place, (topic, queue, offset, tags) in enumerate(wants):
            if topic not in topics:
                topics[topic] = self._topics.get(topic)
            if tags not in filters:
                filters[tags] = parse_tags(tags)
            check_int("offset", offset, -(2**63), 2**63 - 1)
            delay = delay_s(queue, self._delays_of(topic)) if topic.startswith(RETRY) else None
            yield PendingQueue(place, _log(self._engine, topics[topic], queue), filters[tags], offset, offset, delay, NOTHING)

    def answer_now(self, pending: PendingPull) -> list[QueueRead] | None:
        """Returns the answer if memory has it; None: `finish` must wait for it. Raises Corrupt, ReadFailed."""
        try:
            done = self._read_memory(pending)
            if pending.found and not done:  # enough for an answer; the next pull reads the rest
                pending.close()
                done = self._read_memory(pending)
        except NotCached:
            if pending.found:  # queues on disk get their share, too; and messages are held only once there is room for them
                pending.restart()
            return None
        return self._answer(pending) if done and (pending.found or trio.current_time() >= pending.deadline) else None

    async def finish(self, pending: PendingPull, making: Making = nullcontext) -> list[QueueRead]:
        """Waits for the answer. `making` is held only while reading: a waiting pull holds nothing.

        Raises:
            Corrupt, ReadFailed, Closed
        """
        waiter: Waiter | None = None
        try:
            while True:
                self._check_open()
                if pending.left:
                    async with making():
                        await self._read_all(pending)
                        if pending.found:
                            return self._answer(pending)
                if trio.current_time() >= pending.deadline:
                    return self._answer(pending)
                if pending.again:  # a filter skipped many messages
                    again, pending.again = pending.again, []
                    pending.next_round(again)
                    await trio.lowlevel.checkpoint()
                elif waiter is None:
                    waiter = self._waiters.add(pending)
                    pending.next_round(self._changed(pending))
                else:
                    pending.next_round(await self._news(pending, waiter))
        finally:
            if waiter is not None:
                self._waiters.discard(waiter)

    def _answer(self, pending: PendingPull) -> list[QueueRead]:
        pages = pending.pages()
        for each, page in zip(pending.queues, pages, strict=True):
            if page.count:
                self._statistics.pulled(each.log.key, page.count, len(page.records))
        return pages

    async def _read_all(self, pending: PendingPull) -> None:
        """Reads all queues that are due. Messages found do not wait long for queues on disk, which the next pull reads."""
        until = trio.current_time() + _READING_SECONDS
        while True:
            try:
                if self._read_memory(pending):
                    return
            except NotCached:
                await self._read_disk(pending)
                if pending.found and trio.current_time() >= until:
                    pending.close()
            else:
                await trio.lowlevel.checkpoint()

    def _read_memory(self, pending: PendingPull) -> bool:
        """Reads from memory for as long as other tasks may wait. Returns whether no queue is left to read.

        Raises:
            NotCached: the next queue must be read from disk.
            Corrupt, ReadFailed
        """
        pull, visible, left = self._engine.reader.pull, self._engine.visible_position, pending.left
        if pending.seen < 0:
            pending.seen = visible
        entries = size = 0
        while left:
            if (entries > _TURN_ENTRIES or size > _TURN_BYTES) and not pending.full:
                return False
            each = left[-1]
            log, offset = each.log, each.offset
            end = log.visible_end(visible)
            entries += _ENTRIES_OF_A_QUEUE
            if offset == end >= log.first:  # true of most queues of most pulls; makes them cost a third of the others
                each.page, each.due_at = QueueRead(b"", 0, end, log.first, end), None
                left.pop()
                continue
            messages_max, not_after = self._due_now(each, pending.messages_max)
            page = pull(
                log,
                offset,
                visible,
                messages_max,
                min(pending.bytes_max, _IN_PLACE_BYTES_MAX),
                each.tags,
                cached_only=True,
                not_after=not_after,
            )
            self._look_again(each, page)
            entries += max(0, page.next_offset - offset)
            size += len(page.records)
            pending.take(left.pop(), page)
        return True

    async def _read_disk(self, pending: PendingPull) -> None:
        each, visible = pending.left[-1], self._engine.visible_position
        messages_max, not_after = self._due_now(each, pending.messages_max)
        page = await trio.to_thread.run_sync(
            on_thread,
            lambda: self._engine.reader.pull(
                each.log, each.offset, visible, messages_max, pending.bytes_max, each.tags, not_after=not_after
            ),
            limiter=self._readers,
        )
        self._look_again(each, page)
        pending.take(pending.left.pop(), page)

    def _due_now(self, each: PendingQueue, messages_max: int) -> tuple[int, int | None]:
        """Returns how many messages of a queue may be read, and the latest time of a message that is due in a retry queue."""
        if each.delay_s is None:
            return messages_max, None
        due = self._due.due_before(each.log.key, each.offset, each.delay_s, trio.current_time()) - each.offset
        if due > 0 and each.tags is None:
            return min(messages_max, due), None
        return messages_max, int((self._engine.clock() - each.delay_s) * 1_000_000)

    def _look_again(self, each: PendingQueue, page: QueueRead) -> None:
        if page.due_s is not None and each.delay_s is not None and page.due_s > each.delay_s:  # from the future
            page.due_s = self._due.saw(each.log.key, page.end, each.delay_s, trio.current_time())

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the broker is closed")

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _changed(self, pending: PendingPull) -> list[PendingQueue]:
        """Returns the queues that got messages after they were read and before the pull became a waiter."""
        visible = self._engine.visible_position
        if visible == pending.seen:
            return []
        return [each for each in pending.queues if each.due_at is None and each.log.visible_end(visible) > each.offset]

    async def _news(self, pending: PendingPull, waiter: Waiter) -> list[PendingQueue]:
        """Waits until queues have news or the deadline has passed; returns the queues with news."""
        due = [each for each in pending.queues if each.due_at is not None]
        until = min([pending.deadline, *(each.due_at for each in due if each.due_at is not None)])
        found, now = await self._waiters.news(waiter, until), trio.current_time()
        return found + [each for each in due if each.due_at is not None and each.due_at <= now and each not in found]


def queue_log(engine: MessageEngine, topics: Topics, topic: str, queue: int) -> QueueLog:
    """Returns the log of a queue. Raises UnknownTopic, UnknownQueue."""
    return _log(engine, topics.get(topic), queue)


def _log(engine: MessageEngine, topic: Topic, queue: int) -> QueueLog:
    topic.queue(queue)
    return engine.queues[topic.id, queue]
