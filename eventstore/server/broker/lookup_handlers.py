"""Handlers of look-ups: single messages by id, place or key, and the offset at a point in time. Each reads on a thread."""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.broker.broker import Broker
from eventstore.broker.message_lookups import FoundMessages
from eventstore.protocol.broker_requests import FindKey, FindMessage, OffsetAt, ReadMessage
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.server.broker.handlers import answers, finds


class LookupHandlers:
    """The look-ups of messages."""

    def __init__(self, broker: Broker) -> None:
        self._lookups = broker.lookups

    @finds(FindMessage, size=PAGE_BYTES_DEFAULT)
    async def find(self, request: FindMessage) -> Sequence[bytes]:
        return _found(await self._lookups.find(request.message_id))

    @finds(ReadMessage, size=PAGE_BYTES_DEFAULT)
    async def read(self, request: ReadMessage) -> Sequence[bytes]:
        return _found(await self._lookups.message(request.topic, request.queue, request.offset))

    @finds(FindKey, size=lambda request: request.bytes_max)
    async def find_key(self, request: FindKey) -> FoundMessages:
        return await self._lookups.find_key(request.topic, request.key, request.messages_max, request.bytes_max, request.before)

    @answers(OffsetAt)
    async def offset_at(self, request: OffsetAt) -> int:
        return await self._lookups.offset_at(request.topic, request.queue, request.time)


def _found(record: bytes | None) -> Sequence[bytes]:
    return () if record is None else (record,)
