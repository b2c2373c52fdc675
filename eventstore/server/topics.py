"""Topics, queues and chunks, as operators create, change and look at them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from eventstore import flat
from eventstore.broker.broker import Broker
from eventstore.broker.statistics import Rates
from eventstore.errors import InvalidArgument
from eventstore.flat import Scalar
from eventstore.protocol import encode_ok
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
from eventstore.server.connection import Connection
from eventstore.server.replies import LIST_BYTES, Replies


class TopicRequests:
    """The operations on topics; changes are durable when they are answered."""

    def __init__(self, broker: Broker, replies: Replies) -> None:
        self._broker = broker
        self._replies = replies

    def create(self, connection: Connection, request_id: int, request: CreateTopic) -> None:
        self._do(connection, request_id, lambda: self._create(request))

    async def _create(self, request: CreateTopic) -> Sequence[Scalar]:
        topics = self._broker.topics
        try:
            await self._broker.administration.create_topic(request.topic, request.queues)
        except InvalidArgument:
            if request.if_missing and request.topic in topics.by_name:
                return (False,)
            raise
        return (True,)

    def delete(self, connection: Connection, request_id: int, request: DeleteTopic) -> None:
        async def change() -> Sequence[Scalar]:
            await self._broker.administration.delete_topic(request.topic, ignore_unconsumed=request.ignore_unconsumed)
            return ()

        self._do(connection, request_id, change)

    def add_queues(self, connection: Connection, request_id: int, request: AddQueues) -> None:
        async def change() -> Sequence[Scalar]:
            topic = await self._broker.administration.add_queues(request.topic, request.count)
            return range(topic.next_queue - request.count, topic.next_queue)

        self._do(connection, request_id, change)

    def close_queue(self, connection: Connection, request_id: int, request: CloseQueue) -> None:
        async def change() -> Sequence[Scalar]:
            await self._broker.administration.close_queue(request.topic, request.queue)
            return ()

        self._do(connection, request_id, change)

    def remove_queue(self, connection: Connection, request_id: int, request: RemoveQueue) -> None:
        async def change() -> Sequence[Scalar]:
            await self._broker.administration.remove_queue(request.topic, request.queue)
            return ()

        self._do(connection, request_id, change)

    def list(self, connection: Connection, request_id: int, _: ListTopics) -> None:
        async def rows() -> Sequence[Scalar]:
            found = sorted(self._broker.topics.by_name.items())
            return flat.chain((name, len(topic.queues), len(topic.open)) for name, topic in found)

        self._do(connection, request_id, rows, LIST_BYTES)

    def show(self, connection: Connection, request_id: int, request: ShowTopic) -> None:
        async def rows() -> Sequence[Scalar]:
            found = self._broker.statistics.queues_of(self._broker.topics.get(request.topic))
            return flat.chain((each.queue, each.state, each.begin, each.end, *_rates(each.rates)) for each in found)

        self._do(connection, request_id, rows, LIST_BYTES)

    def chunks(self, connection: Connection, request_id: int, request: ListChunks) -> None:
        async def rows() -> Sequence[Scalar]:
            found = [each for each in self._broker.statistics.chunks() if each.number > request.after]
            return flat.chain(
                (each.number, each.state, each.bytes, each.mapped, *_rates(each.rates)) for each in found[:ROWS_PER_ANSWER_MAX]
            )

        self._do(connection, request_id, rows, LIST_BYTES)

    def _do(
        self, connection: Connection, request_id: int, ask: Callable[[], Awaitable[Sequence[Scalar]]], size: int | None = None
    ) -> None:
        async def answer() -> Sequence[bytes]:
            return (encode_ok(request_id, *await ask()),)

        self._replies.later(connection, request_id, answer, size)


def _rates(rates: Rates) -> tuple[int, int, int, int]:
    return round(rates.written), round(rates.written_bytes), round(rates.read), round(rates.read_bytes)
