"""Looks up single messages by id, place or key, and the offset at a point in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Final, NamedTuple, TypeVar

import trio

from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.log.queue import QueueLog
from eventstore.broker.pulls import PULL_BYTES_MAX, queue_log
from eventstore.broker.topics import Topics
from eventstore.fields import check_int, check_text
from eventstore.records.message import decode_messages, parse_message_id, text_hash
from eventstore.timing.work_time import on_thread

KEY_RESULTS_MAX: Final = 1_000
EXAMINED_MAX: Final = 256
"""Messages that one look-up by key reads. Keys with one hash are easily made: it is a CRC, and each record shows it."""

POSITION_MAX: Final = 2**63 - 1
_PAGES_MAX: Final = 256
_PAGE_DONE: Final = -1
_READERS_MAX: Final = 4

Value = TypeVar("Value")


class FoundMessages(NamedTuple):
    """Records with a key, the newest first.

    Attributes:
        next: messages before this position were not looked at; 0: nothing is left.
    """

    records: list[bytes]
    next: int


class MessageLookups:
    """Each look-up runs on a thread, because it may wait for the disk."""

    def __init__(self, engine: MessageEngine, topics: Topics, node: int) -> None:
        self._engine = engine
        self._topics = topics
        self._node = node
        self._readers = trio.CapacityLimiter(_READERS_MAX)

    async def find(self, message_id: str) -> bytes | None:
        """Returns the record with this id, if this broker has it. Raises InvalidArgument, Corrupt, ReadFailed."""
        node, position = parse_message_id(message_id)
        if node != self._node:
            return None
        visible = self._engine.visible_position
        return await self._on_thread(lambda: self._engine.files.read_at(position, visible))

    async def message(self, topic: str, queue: int, offset: int) -> bytes | None:
        """Returns the record at this place, or None if the queue does not hold it. Raises UnknownTopic, UnknownQueue."""
        log, visible = queue_log(self._engine, self._topics, topic, queue), self._engine.visible_position
        check_int("offset", offset, 0, 2**63 - 1)
        return await self._on_thread(lambda: self._engine.reader.message(log, offset, visible))

    async def find_key(
        self, topic: str, key: str, limit: int = 64, bytes_max: int = PULL_BYTES_MAX, before: int = POSITION_MAX
    ) -> FoundMessages:
        """Returns the last records with this key before a position of the log: up to `limit` and about `bytes_max`, but at
        least one. Reads a bounded number of messages that may have the key, and of entries; so it may find none and not be
        at the end.

        Raises:
            UnknownTopic, InvalidArgument, Corrupt, ReadFailed
        """
        check_text("key", key)
        check_int("limit", limit, 1, KEY_RESULTS_MAX)
        check_int("bytes_max", bytes_max, 1, PULL_BYTES_MAX)
        check_int("before", before, 0, POSITION_MAX)
        found = self._topics.get(topic)
        logs = [queue_log(self._engine, self._topics, topic, queue) for queue in found.queues]
        visible = self._engine.visible_position
        return await self._on_thread(lambda: self._find_key(logs, key, limit, bytes_max, visible, min(before, visible)))

    def _find_key(
        self, logs: Sequence[QueueLog], key: str, limit: int, bytes_max: int, visible: int, before: int
    ) -> FoundMessages:
        found: list[bytes] = []
        size, pages, wanted = 0, 0, text_hash(key)
        queues = [self._with_key_hash(log, place, wanted, before) for place, log in enumerate(logs)]
        for examined, (at, place, offset) in enumerate(merge(*queues), 1):
            if offset == _PAGE_DONE:
                pages += 1
            else:
                record = self._engine.reader.message(logs[place], offset, visible)
                if record is not None and decode_messages(record, 1)[0].key == key:
                    found.append(record)
                    size += len(record)
            if len(found) == limit or size >= bytes_max or examined - pages == EXAMINED_MAX or pages == _PAGES_MAX:
                return FoundMessages(found, -at)
        return FoundMessages(found, 0)

    def _with_key_hash(self, log: QueueLog, place: int, key_hash: int, before: int) -> Iterator[tuple[int, int, int]]:
        """Yields the messages of a queue with this hash, the newest first, as tuples by which queues can be merged. After the
        messages of a page of entries it yields the first position of that page.
        """
        reader = self._engine.reader
        for start, offsets in reader.pages_of_key(log, key_hash, reader.end_before(log, before)):
            for offset in offsets:
                yield -reader.entry(log, offset).position, place, offset
            yield -reader.entry(log, start).position, place, _PAGE_DONE

    async def offset_at(self, topic: str, queue: int, time_us: int) -> int:
        """Returns the offset of the first message of this time or later; the end of the queue if there is none."""
        log, visible = queue_log(self._engine, self._topics, topic, queue), self._engine.visible_position
        check_int("time", time_us, -(2**63), 2**63 - 1)
        return await self._on_thread(lambda: self._engine.reader.offset_at_time(log, time_us, visible))

    async def _on_thread(self, read: Callable[[], Value]) -> Value:
        return await trio.to_thread.run_sync(on_thread, read, limiter=self._readers)
