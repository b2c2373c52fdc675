"""Pulls of many queues at once that wait for messages without asking again and again: a waiting pull costs nothing until a
message comes, or until what it waits for in a retry queue is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from eventstore.broker.engine import Engine
from eventstore.broker.names import RETRY
from eventstore.broker.pulling import Pulled
from eventstore.broker.queue_chunks import NotCached
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.retrying import delay_s
from eventstore.broker.settings import BrokerSettings
from eventstore.broker.state_record import QueueKey
from eventstore.broker.statistics import Statistics
from eventstore.broker.tag_filter import TagFilter, parse_tags
from eventstore.broker.topics import Topics
from eventstore.errors import Closed, InvalidArgument
from eventstore.fields import check_int

MESSAGES_MAX: Final = 10_000
PULL_BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_SECONDS_MAX: Final = 60.0
WANTS_MAX: Final = 1_000
_IN_PLACE_BYTES_MAX: Final = 128 * 1024
_TURN_BYTES: Final = 256 * 1024  # taken from memory, before others on the loop have their turn
_TURN_ENTRIES: Final = 16_384  # looked at, likewise
_ENTRIES_OF_A_QUEUE: Final = 16  # what finding nothing in a queue costs, in entries
_READERS_MAX: Final = 16

Making: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""What has to be entered while messages are looked for, and left once they are found or there are none."""


@dataclass(frozen=True, slots=True)
class Want:
    """One queue of a pull: where to go on, and which tags."""

    topic: str
    queue: int
    offset: int
    tags: str | None = None


@dataclass(slots=True)
class _Sought:
    """A want, checked; `offset` moves on."""

    want: Want
    log: QueueLog
    tags: TagFilter | None
    offset: int


class Pulls:
    """Belongs to one trio run; reads that have to wait for the disk run on threads of their own number."""

    def __init__(self, engine: Engine, topics: Topics, statistics: Statistics, settings: BrokerSettings) -> None:
        self._engine = engine
        self._topics = topics
        self._statistics = statistics
        self._delays_s = settings.retry_delays_s
        self._readers = trio.CapacityLimiter(_READERS_MAX)
        self._listeners: dict[QueueKey, set[trio.Event]] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many queues somebody waits for."""
        return len(self._listeners)

    def wake(self, queues: set[QueueKey]) -> None:
        """These queues have new messages."""
        for key in queues & self._listeners.keys():
            for event in self._listeners[key]:
                event.set()

    def close(self) -> None:
        """Whoever waits is told that the broker is closed."""
        self._closed = True
        self.wake(set(self._listeners))

    async def pull(
        self, wants: Sequence[Want], *, messages_max: int = 64, bytes_max: int = 1024 * 1024, wait_s: float = 0.0,
        making: Making = nullcontext,
    ) -> list[Pulled]:  # fmt: skip
        """The next messages of some queues, one `Pulled` for each, together about so many messages and bytes.

        Where none of them has any, waits up to `wait_s` for one. What did not match a filter is passed over: go on at
        `next_offset` even where `count` is 0. An offset outside of its queue is brought into it, and that is said at once.
        `making` is not entered while nothing is there: a pull that waits holds nothing.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument, Corrupt, ReadFailed, Closed
        """
        check_int("messages_max", messages_max, 1, MESSAGES_MAX)
        check_int("bytes_max", bytes_max, 1, PULL_BYTES_MAX)
        check_int("wants", len(wants), 1, WANTS_MAX)
        if len({(want.topic, want.queue) for want in wants}) < len(wants):
            raise InvalidArgument("a queue is named twice; a pull goes on in one place of each", field="queue")
        deadline = trio.current_time() + min(max(wait_s, 0.0), WAIT_SECONDS_MAX)
        sought = [self._seek(want) for want in wants]
        while True:
            await trio.lowlevel.checkpoint()
            event = self._listen(sought)  # before looking: what comes meanwhile sets it
            try:
                async with making():
                    pulled = await self._pull_each(sought, messages_max, bytes_max)
                    if any(page.count or page.clamped is not None for page in pulled) or trio.current_time() >= deadline:
                        return pulled
                for each, page in zip(sought, pulled, strict=True):
                    each.offset = page.next_offset
                if all(page.next_offset >= page.end or page.due_s is not None for page in pulled):
                    due_s = min((page.due_s for page in pulled if page.due_s is not None), default=WAIT_SECONDS_MAX)
                    with trio.move_on_at(min(deadline, trio.current_time() + due_s)):
                        await event.wait()
            finally:
                self._forget(sought, event)

    def _seek(self, want: Want) -> _Sought:
        log = queue_log(self._engine, self._topics, want.topic, want.queue)
        return _Sought(want, log, parse_tags(want.tags), check_int("offset", want.offset, -(2**63), 2**63 - 1))

    async def _pull_each(self, sought: Sequence[_Sought], messages_max: int, bytes_max: int) -> list[Pulled]:
        if self._closed:
            raise Closed("the broker is closed")
        found: list[Pulled] = []
        entries = size = 0
        for each in sought:
            if entries > _TURN_ENTRIES or size > _TURN_BYTES:
                entries = size = 0
                await trio.lowlevel.checkpoint()
            page = await self._pull_one(each, messages_max, bytes_max)
            found.append(page)
            entries += _ENTRIES_OF_A_QUEUE + max(0, page.next_offset - each.offset)
            size += len(page.records)
            messages_max, bytes_max = messages_max - page.count, max(0, bytes_max - len(page.records))
        return found

    async def _pull_one(self, sought: _Sought, messages_max: int, bytes_max: int) -> Pulled:
        engine, log, offset, tags = self._engine, sought.log, sought.offset, sought.tags
        pull, visible, not_after = engine.puller.pull, engine.visible_position, None
        if sought.want.topic.startswith(RETRY):
            not_after = int((engine.clock() - delay_s(sought.want.queue, self._delays_s)) * 1_000_000)
        try:
            in_place = min(bytes_max, _IN_PLACE_BYTES_MAX)
            page = pull(log, offset, visible, messages_max, in_place, tags, cached_only=True, not_after=not_after)
        except NotCached:
            page = await trio.to_thread.run_sync(
                lambda: pull(log, offset, visible, messages_max, bytes_max, tags, not_after=not_after), limiter=self._readers
            )
        self._statistics.pulled(log.key, page.count, len(page.records))
        return page

    def _listen(self, sought: Sequence[_Sought]) -> trio.Event:
        event = trio.Event()
        for each in sought:
            self._listeners.setdefault(each.log.key, set()).add(event)
        return event

    def _forget(self, sought: Sequence[_Sought], event: trio.Event) -> None:
        for key in {each.log.key for each in sought}:
            self._listeners[key].discard(event)
            if not self._listeners[key]:
                del self._listeners[key]


def queue_log(engine: Engine, topics: Topics, topic: str, queue: int) -> QueueLog:
    """Raises UnknownTopic, UnknownQueue."""
    found = topics.get(topic)
    found.queue(queue)
    return engine.queues[found.id, queue]
