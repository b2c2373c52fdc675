"""Pulls of many queues at once that wait for messages without asking again and again: a waiting pull costs nothing until a
message comes, or until what it waits for in a retry queue is due; then only the queues that have news are looked at.

A pull is a `Search` that goes on from one look to the next. The first look may be taken on the spot, without a task: what was
written last is in memory, and so is that a queue has nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, NamedTuple, TypeAlias

import trio

from eventstore.broker.engine import Engine
from eventstore.broker.names import RETRY
from eventstore.broker.pulling import Pulled
from eventstore.broker.queue_chunks import NotCached
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.retrying import delay_s
from eventstore.broker.search import NOTHING, Search, Sought, Waiter
from eventstore.broker.settings import BrokerSettings
from eventstore.broker.state_record import QueueKey
from eventstore.broker.statistics import Statistics
from eventstore.broker.tag_filter import TagFilter, parse_tags
from eventstore.broker.topics import Topic, Topics
from eventstore.errors import Closed, InvalidArgument
from eventstore.fields import check_int

MESSAGES_MAX: Final = 10_000
PULL_BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_SECONDS_MAX: Final = 60.0
WANTS_MAX: Final = 1_000
_IN_PLACE_BYTES_MAX: Final = 512 * 1024
_TURN_BYTES: Final = 512 * 1024  # taken from memory, before others on the loop have their turn
_TURN_ENTRIES: Final = 16_384  # looked at, likewise
_ENTRIES_OF_A_QUEUE: Final = 16  # what finding nothing in a queue costs, in entries
_READERS_MAX: Final = 16
_READING_SECONDS: Final = 0.02
_LONG_WAIT_SECONDS: Final = 10.0
_LONG_WAITS_END_SECONDS: Final = 0.5  # apart: one wake-up for all of them costs little more than for one

Making: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""What has to be entered while messages are looked for, and left once they are found or there are none."""


class Want(NamedTuple):
    """One queue of a pull: where to go on, and which tags."""

    topic: str
    queue: int
    offset: int
    tags: str | None = None


class Pulls:
    """Belongs to one trio run; reads that have to wait for the disk run on threads of their own number."""

    def __init__(self, engine: Engine, topics: Topics, statistics: Statistics, settings: BrokerSettings) -> None:
        self._engine = engine
        self._topics = topics
        self._statistics = statistics
        self._delays_s = settings.retry_delays_s
        self._readers = trio.CapacityLimiter(_READERS_MAX)
        self._waiters: dict[QueueKey, set[Waiter]] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many queues somebody waits for."""
        return len(self._waiters)

    def wake(self, queues: set[QueueKey]) -> None:
        """These queues have new messages."""
        for key in queues & self._waiters.keys():
            for waiter in self._waiters[key]:
                waiter.wake(key)

    def close(self) -> None:
        """Whoever waits is told that the broker is closed."""
        self._closed = True
        self.wake(set(self._waiters))

    async def pull(
        self, wants: Sequence[Want], *, messages_max: int = 64, bytes_max: int = 1024 * 1024, wait_s: float = 0.0,
    ) -> list[Pulled]:  # fmt: skip
        """The next messages of some queues, one `Pulled` for each, together about so many messages and bytes.

        Where none of them has any, waits up to `wait_s` for one; of 10 seconds and more up to half a second less. What did
        not match a filter is passed over: go on at `next_offset` even where `count` is 0. An offset outside of its queue is
        brought into it, and that is said at once.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument, Corrupt, ReadFailed, Closed
        """
        await trio.lowlevel.checkpoint()
        return await self.finish(self.search(wants, messages_max=messages_max, bytes_max=bytes_max, wait_s=wait_s))

    def search(
        self, wants: Sequence[tuple[str, int, int, str | None]], *, messages_max: int, bytes_max: int, wait_s: float
    ) -> Search:
        """A pull that has not looked anywhere yet: to be given to `answer_now`, or to `finish`, or to one after the other.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument, Closed
        """
        check_int("messages_max", messages_max, 1, MESSAGES_MAX)
        check_int("bytes_max", bytes_max, 1, PULL_BYTES_MAX)
        check_int("wants", len(wants), 1, WANTS_MAX)
        self._check_open()
        deadline = _deadline(trio.current_time(), min(max(wait_s, 0.0), WAIT_SECONDS_MAX))
        sought = list(self._seek(wants))
        if len({each.log.key for each in sought}) < len(sought):
            raise InvalidArgument("a queue is named twice; a pull goes on in one place of each", field="queue")
        return Search(sought, messages_max, bytes_max, deadline)

    def _seek(self, wants: Sequence[tuple[str, int, int, str | None]]) -> Iterator[Sought]:
        filters: dict[str | None, TagFilter | None] = {None: None}
        topics: dict[str, Topic] = {}
        for place, (topic, queue, offset, tags) in enumerate(wants):
            if topic not in topics:
                topics[topic] = self._topics.get(topic)
            if tags not in filters:
                filters[tags] = parse_tags(tags)
            check_int("offset", offset, -(2**63), 2**63 - 1)
            delay = delay_s(queue, self._delays_s) if topic.startswith(RETRY) else None
            yield Sought(place, _log(self._engine, topics[topic], queue), filters[tags], offset, offset, delay, NOTHING)

    def answer_now(self, search: Search) -> list[Pulled] | None:
        """The answer, if memory has it; None: `finish` has to wait for it. Raises Corrupt, ReadFailed."""
        try:
            done = self._look(search)
            if search.found and not done:  # enough for an answer; the rest is for the next pull
                search.close()
                done = self._look(search)
        except NotCached:
            if search.found:  # queues on disk get their share as well; what is found is held only once there is room for it
                search.restart()
            return None
        return self._answer(search) if done and (search.found or trio.current_time() >= search.deadline) else None

    async def finish(self, search: Search, making: Making = nullcontext) -> list[Pulled]:
        """The answer. `making` is not entered while nothing is there: a pull that waits holds nothing.

        Raises:
            Corrupt, ReadFailed, Closed
        """
        waiter: Waiter | None = None
        try:
            while True:
                self._check_open()
                if search.left:
                    async with making():
                        await self._look_everywhere(search)
                        if search.found:
                            return self._answer(search)
                if trio.current_time() >= search.deadline:
                    return self._answer(search)
                if search.again:  # a filter has passed over much
                    again, search.again = search.again, []
                    search.go_on(again)
                    await trio.lowlevel.checkpoint()
                elif waiter is None:
                    waiter = self._listen(search)
                    search.go_on(self._changed(search))
                else:
                    search.go_on(await self._news(search, waiter))
        finally:
            if waiter is not None:
                self._forget(waiter)

    def _answer(self, search: Search) -> list[Pulled]:
        pages = search.pages()
        for each, page in zip(search.sought, pages, strict=True):
            if page.count:
                self._statistics.pulled(each.log.key, page.count, len(page.records))
        return pages

    async def _look_everywhere(self, search: Search) -> None:
        """What is found does not wait long for queues that have to be read from disk: they are for the next pull."""
        until = trio.current_time() + _READING_SECONDS
        while True:
            try:
                if self._look(search):
                    return
            except NotCached:
                await self._read(search)
                if search.found and trio.current_time() >= until:
                    search.close()
            else:
                await trio.lowlevel.checkpoint()

    def _look(self, search: Search) -> bool:
        """Looks into memory for as long as others on the loop may wait for it. Whether nothing is left to look at.

        Raises:
            NotCached: the next queue has to be read from disk.
            Corrupt, ReadFailed
        """
        pull, visible, left = self._engine.puller.pull, self._engine.visible_position, search.left
        if search.seen < 0:
            search.seen = visible
        entries = size = 0
        while left:
            if (entries > _TURN_ENTRIES or size > _TURN_BYTES) and not search.full:
                return False
            each = left[-1]
            log, offset = each.log, each.offset
            end = log.visible_end(visible)
            entries += _ENTRIES_OF_A_QUEUE
            if offset == end >= log.first:  # as in most queues of most pulls, which therefore cost a third of the others
                each.page, each.due_at = Pulled(b"", 0, end, log.first, end), None
                left.pop()
                continue
            page = pull(
                log, offset, visible, search.messages_max, min(search.bytes_max, _IN_PLACE_BYTES_MAX), each.tags,
                cached_only=True, not_after=self._not_after(each),
            )  # fmt: skip
            entries += max(0, page.next_offset - offset)
            size += len(page.records)
            search.take(left.pop(), page)
        return True

    async def _read(self, search: Search) -> None:
        each, visible, not_after = search.left[-1], self._engine.visible_position, self._not_after(search.left[-1])
        page = await trio.to_thread.run_sync(
            lambda: self._engine.puller.pull(
                each.log, each.offset, visible, search.messages_max, search.bytes_max, each.tags, not_after=not_after
            ),
            limiter=self._readers,
        )
        search.take(search.left.pop(), page)

    def _not_after(self, each: Sought) -> int | None:
        return None if each.delay_s is None else int((self._engine.clock() - each.delay_s) * 1_000_000)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the broker is closed")

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _listen(self, search: Search) -> Waiter:
        waiter = Waiter(search)
        for key in waiter.by_key:
            self._waiters.setdefault(key, set()).add(waiter)
        return waiter

    def _forget(self, waiter: Waiter) -> None:
        for key in waiter.by_key:
            self._waiters[key].discard(waiter)
            if not self._waiters[key]:
                del self._waiters[key]

    def _changed(self, search: Search) -> list[Sought]:
        """What has come since the search looked, before it began to listen."""
        visible = self._engine.visible_position
        if visible == search.seen:
            return []
        return [each for each in search.sought if each.due_at is None and each.log.visible_end(visible) > each.offset]

    async def _news(self, search: Search, waiter: Waiter) -> list[Sought]:
        """Returns when there is something to look at, or the time is over: what that is."""
        due = [each for each in search.sought if each.due_at is not None]
        until = min([search.deadline, *(each.due_at for each in due if each.due_at is not None)])
        with trio.move_on_at(until):
            await waiter.event.wait()
        found, now = waiter.take(), trio.current_time()
        return found + [each for each in due if each.due_at is not None and each.due_at <= now and each not in found]


def _deadline(now: float, wait_s: float) -> float:
    """Never later than asked for; long waits end together with others."""
    if wait_s < _LONG_WAIT_SECONDS:
        return now + wait_s
    return (now + wait_s) // _LONG_WAITS_END_SECONDS * _LONG_WAITS_END_SECONDS


def queue_log(engine: Engine, topics: Topics, topic: str, queue: int) -> QueueLog:
    """Raises UnknownTopic, UnknownQueue."""
    return _log(engine, topics.get(topic), queue)


def _log(engine: Engine, topic: Topic, queue: int) -> QueueLog:
    topic.queue(queue)
    return engine.queues[topic.id, queue]
