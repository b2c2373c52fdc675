"""Single messages: by id, by place, by key; and the offset of a point in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import trio

from eventstore.broker.engine import Engine
from eventstore.broker.message import decode_messages, parse_message_id, text_hash
from eventstore.broker.pulls import queue_log
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.topics import Topics
from eventstore.fields import check_int, check_text

KEY_RESULTS_MAX: Final = 1_000
_READERS_MAX: Final = 4

Value = TypeVar("Value")


class LookUps:
    """Each runs on a thread: it may have to wait for the disk."""

    def __init__(self, engine: Engine, topics: Topics, node: int) -> None:
        self._engine = engine
        self._topics = topics
        self._node = node
        self._readers = trio.CapacityLimiter(_READERS_MAX)

    async def find(self, message_id: str) -> bytes | None:
        """The record of a message of this broker, or None. Raises InvalidArgument, Corrupt, ReadFailed."""
        node, position = parse_message_id(message_id)
        if node != self._node:
            return None
        visible = self._engine.visible_position
        return await self._on_thread(lambda: self._engine.files.read_at(position, visible))

    async def message(self, topic: str, queue: int, offset: int) -> bytes | None:
        """The record at this place, or None where the queue does not hold it. Raises UnknownTopic, UnknownQueue."""
        log, visible = queue_log(self._engine, self._topics, topic, queue), self._engine.visible_position
        check_int("offset", offset, 0, 2**63 - 1)
        return await self._on_thread(lambda: self._engine.puller.message(log, offset, visible))

    async def find_key(self, topic: str, key: str, limit: int = 64) -> list[bytes]:
        """The last records with this key, the newest first. Raises UnknownTopic, InvalidArgument."""
        check_text("key", key)
        check_int("limit", limit, 1, KEY_RESULTS_MAX)
        found = self._topics.get(topic)
        logs = [queue_log(self._engine, self._topics, topic, queue) for queue in found.queues]
        visible = self._engine.visible_position
        return await self._on_thread(lambda: self._find_key(logs, key, limit, visible))

    def _find_key(self, logs: Sequence[QueueLog], key: str, limit: int, visible: int) -> list[bytes]:
        found, wanted = [], text_hash(key)
        for log in logs:
            taken = 0
            for offset in self._engine.puller.offsets_of_key(log, wanted, visible):
                record = self._engine.puller.message(log, offset, visible)
                if record is not None and (message := decode_messages(record, 1)[0]).key == key:
                    found.append((message.position, record))
                    taken += 1
                if taken == limit:
                    break
        return [record for _, record in sorted(found, reverse=True)[:limit]]

    async def offset_at(self, topic: str, queue: int, time_us: int) -> int:
        """The first offset of this time or later; the end of the queue where there is none."""
        log, visible = queue_log(self._engine, self._topics, topic, queue), self._engine.visible_position
        check_int("time", time_us, -(2**63), 2**63 - 1)
        return await self._on_thread(lambda: self._engine.puller.offset_at_time(log, time_us, visible))

    async def _on_thread(self, read: Callable[[], Value]) -> Value:
        return await trio.to_thread.run_sync(read, limiter=self._readers)
