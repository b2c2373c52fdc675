"""Single messages: by id, by place, by key; and the offset of a point in time. Each is read on a thread."""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.broker.broker import Broker
from eventstore.protocol import encode_messages, encode_ok
from eventstore.protocol.broker_requests import FindKey, FindMessage, OffsetAt, ReadMessage
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.server.connection import Connection
from eventstore.server.replies import Replies


class MessageLookUps:
    """What is asked of single messages."""

    def __init__(self, broker: Broker, replies: Replies) -> None:
        self._look_ups = broker.look_ups
        self._replies = replies

    def find(self, connection: Connection, request_id: int, request: FindMessage) -> None:
        async def answer() -> Sequence[bytes]:
            return _one(request_id, await self._look_ups.find(request.message_id))

        self._replies.later(connection, request_id, answer, PAGE_BYTES_DEFAULT)

    def read(self, connection: Connection, request_id: int, request: ReadMessage) -> None:
        async def answer() -> Sequence[bytes]:
            return _one(request_id, await self._look_ups.message(request.topic, request.queue, request.offset))

        self._replies.later(connection, request_id, answer, PAGE_BYTES_DEFAULT)

    def find_key(self, connection: Connection, request_id: int, request: FindKey) -> None:
        async def answer() -> Sequence[bytes]:
            found = await self._look_ups.find_key(request.topic, request.key, request.messages_max, request.bytes_max)
            return encode_messages(request_id, found, len(found))

        self._replies.later(connection, request_id, answer, request.bytes_max)

    def offset_at(self, connection: Connection, request_id: int, request: OffsetAt) -> None:
        async def answer() -> Sequence[bytes]:
            return (encode_ok(request_id, await self._look_ups.offset_at(request.topic, request.queue, request.time)),)

        self._replies.later(connection, request_id, answer)


def _one(request_id: int, record: bytes | None) -> list[bytes]:
    return encode_messages(request_id, [] if record is None else [record], int(record is not None))
