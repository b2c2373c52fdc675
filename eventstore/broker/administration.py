"""Creates, closes and removes topics and queues while messages are sent and pulled.

A queue is removed in steps: it is hidden from producers, drained, hidden from consumers, then deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import trio

from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.topics import Topic, Topics
from eventstore.errors import InvalidArgument, Unconsumed
from eventstore.records.topic_names import DEAD, check_name, is_own
from eventstore.settings.broker import BrokerSettings
from eventstore.timing.work_time import on_thread


class Administration:
    """One change at a time; each is durable on return."""

    def __init__(self, engine: MessageEngine, topics: Topics, groups: Groups, settings: BrokerSettings) -> None:
        self._engine = engine
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._one_at_a_time = trio.Lock()

    async def create_topic(self, name: str, queues: int | None = None) -> Topic:
        """Creates a topic.

        Raises:
            InvalidArgument: the name is not allowed or in use, or there are too many queues.
        """
        check_name("topic", name)
        wanted = self._settings.default_queues if queues is None else queues
        return await self._change(lambda: self._topics.create(name, wanted), name)

    async def add_queues(self, name: str, count: int) -> Topic:
        """Adds queues; keys lead to other queues from then on. Raises UnknownTopic, InvalidArgument."""
        return await self._change(lambda: self._topics.add_queues(name, count), name)

    async def close_queue(self, name: str, queue: int) -> Topic:
        """Hides a queue from producers; consumers drain it. Raises UnknownTopic, UnknownQueue."""
        return await self._change(lambda: self._topics.set_state(name, queue, "draining"), name)

    async def remove_queue(self, name: str, queue: int) -> None:
        """Removes a queue that was closed: hides it from consumers, then deletes it.

        Raises:
            UnknownTopic, UnknownQueue
            InvalidArgument: it was not closed.
            Unconsumed: a group still has messages to consume in it.
        """
        topic = self._topics.get(name)
        if topic.queue(queue) == "open":
            raise InvalidArgument(f"queue {queue} of {name!r} is open; close it first", field="queue", value=queue)
        key = (topic.id, queue)
        self._check_consumed(name, [queue])
        await self._change(lambda: self._topics.set_state(name, queue, "hidden"), name)
        await self._change(lambda: self._topics.remove_queue(name, queue), name)
        self._engine.queues.pop(key, None)
        await trio.to_thread.run_sync(self._engine.index.remove, key)

    async def delete_topic(self, name: str, *, ignore_unconsumed: bool = False) -> None:
        """Deletes a topic; its messages are deleted with their chunks.

        `dead:GROUP` may be deleted, too: the next dead letter creates it again.

        Raises:
            UnknownTopic, InvalidArgument
            Unconsumed: a group still has messages to consume in it.
        """
        topic = self._topics.get(name)
        if is_own(name) and not name.startswith(DEAD):
            raise InvalidArgument(f"{name!r} is deleted with its group; delete the group", field="topic", value=name)
        if not ignore_unconsumed:
            self._check_consumed(name, topic.queues)
        await self.forget_topic(topic)

    async def forget_topic(self, topic: Topic) -> None:
        """Deletes a topic, even if groups have messages left to consume."""
        await self._change(lambda: self._topics.delete(topic.name), topic.name)
        for number in topic.queues:
            self._engine.queues.pop((topic.id, number), None)
            await trio.to_thread.run_sync(self._engine.index.remove, (topic.id, number))

    def _check_consumed(self, name: str, queues: Iterable[int]) -> None:
        for queue in queues:
            group = self._groups.offsets.unconsumed(name, queue, self._end(name, queue))
            if group is not None:
                raise Unconsumed(
                    f"group {group!r} has messages to consume in queue {queue} of {name!r}",
                    topic=name,
                    queue=queue,
                    group=group,
                )

    async def _change(self, change: Callable[[], Topic], name: str) -> Topic:
        async with self._one_at_a_time:
            topic = await trio.to_thread.run_sync(on_thread, change)
        self._groups.topic_changed(name)
        return topic

    def _end(self, name: str, queue: int) -> int:
        return self._engine.queues[self._topics.get(name).id, queue].next_offset

    async def ensure_topic(self, name: str, queues: int) -> None:
        """Creates the topic, or adds queues to it, so that it has at least this many. The name has been checked."""
        async with self._one_at_a_time:
            topic = self._topics.by_name.get(name)
            missing = queues - len(topic.queues) if topic is not None else queues
            if missing <= 0:
                return
            change = self._topics.create if topic is None else self._topics.add_queues
            await trio.to_thread.run_sync(on_thread, partial(change, name, missing))
        self._groups.topic_changed(name)
