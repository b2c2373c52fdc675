"""Handlers of topics, queues and chunks, as operators create, change and list them. Changes are durable when answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.statistics import Rates
from eventstore.errors import InvalidArgument
from eventstore.protocol.broker_info import ChunkInfo, QueueInfo, TopicInfo
from eventstore.protocol.broker_requests import (
    AddQueues,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    ListChunks,
    ListTopics,
    RemoveQueue,
    ShowTopic,
)
from eventstore.protocol.limits import ROWS_PER_ANSWER_MAX
from eventstore.server.broker.handlers import answers
from eventstore.server.net.deferred_replies import LIST_BYTES


class TopicHandlers:
    """The operations on topics. `may_answer`: returns when all shards that begin with these topics have them, or are known."""

    def __init__(self, broker: Broker, may_answer: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> None:
        self._broker = broker
        self._may_answer = may_answer
        self._administration = broker.administration

    @answers(CreateTopic)
    async def create(self, request: CreateTopic) -> bool:
        is_new = True
        try:
            await self._administration.create_topic(request.topic, request.queues)
        except InvalidArgument:
            if not request.if_missing or request.topic not in self._broker.topics.by_name:
                raise
            is_new = False
        await self._may_answer()
        return is_new

    @answers(DeleteTopic)
    async def delete(self, request: DeleteTopic) -> None:
        await self._administration.delete_topic(request.topic, ignore_unconsumed=request.ignore_unconsumed)
        await self._may_answer()

    @answers(AddQueues)
    async def add_queues(self, request: AddQueues) -> list[int]:
        topic = await self._administration.add_queues(request.topic, request.count)
        await self._may_answer()
        return list(range(topic.next_queue - request.count, topic.next_queue))

    @answers(CloseQueue)
    async def close_queue(self, request: CloseQueue) -> None:
        await self._administration.close_queue(request.topic, request.queue)
        await self._may_answer()

    @answers(RemoveQueue)
    async def remove_queue(self, request: RemoveQueue) -> None:
        await self._administration.remove_queue(request.topic, request.queue)
        await self._may_answer()

    @answers(ListTopics, size=LIST_BYTES)
    async def list_topics(self, _: ListTopics) -> list[TopicInfo]:
        found = sorted(self._broker.topics.by_name.items())
        return [TopicInfo(name, len(topic.queues), len(topic.open)) for name, topic in found]

    @answers(ShowTopic, size=LIST_BYTES)
    async def show(self, request: ShowTopic) -> list[QueueInfo]:
        found = self._broker.statistics.queues_of(self._broker.topics.get(request.topic))
        return [
            QueueInfo(each.queue, each.state, each.begin, each.end, each.accepted, each.durable, *_rates(each.rates))
            for each in found
        ]

    @answers(ListChunks, size=LIST_BYTES)
    async def chunks(self, request: ListChunks) -> list[ChunkInfo]:
        found = [each for each in self._broker.statistics.chunks() if each.number > request.after]
        return [
            ChunkInfo(
                *(each.number, each.state, each.bytes, each.mapped, *_rates(each.rates)),
                *(each.recent, each.memory, each.file),
            )
            for each in found[:ROWS_PER_ANSWER_MAX]
        ]


def _rates(rates: Rates) -> tuple[int, int, int, int]:
    return round(rates.written), round(rates.written_bytes), round(rates.read), round(rates.read_bytes)
