# Generated from eventstore/client/aio/topic.py by `make generate`: do not edit.
"""A topic of the broker, to send messages to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Literal, overload

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.operated import BlockingOperated
from eventstore.client.limit import seconds_of, taken_in_time, within
from eventstore.client.session.batches import BatchQueue
from eventstore.client.session.message_rows import (
    NewMessage,
    SendResult,
    check_topic,
    checked_row,
    encode_message,
    encoded_messages,
    message_bytes,
    settled,
    without_queues,
)
from eventstore.errors import EventStoreError
from eventstore.fields import check_flag
from eventstore.protocol.broker_requests import WireMessage


class BlockingTopic:
    """Sends messages; those sent at the same time travel together. Tasks, or threads, may share one.

    A message whose connection is lost before the answer may be stored or not. It is sent again, and may then be stored twice:
    at least once, in order. With `resend` False it fails instead with ConnectionLost, whose `outcome` is "unknown".
    """

    def __init__(self, store: BlockingOperated, name: str, *, resend: bool) -> None:
        """`store`: of a cluster, a message of a key goes to the shard of the key's slot, one without to the next."""
        self._store = store
        self._resend = resend
        self.name = check_topic(name)

    @overload
    def send(
        self,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
    ) -> SendResult: ...

    @overload
    def send(
        self,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> None: ...

    def send(
        self,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> SendResult | None:
        """Sends a message, which is durable when this returns (with durability `async` of the server: written).

        See `NewMessage` for limits. Messages of one key are stored in the order in which they are sent.

        `wait=False`: the client sends it soon, in the order of those that are sent so, and returns None at once; it waits only
        while 32,768 messages, or 32 MiB, wait. `store.flush` and closing the store wait until all are stored, and raise
        MessagesFailed if some are not; `store.one_way` counts them.

        Raises:
            UnknownTopic, UnknownQueue: nothing was stored.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; the message may be stored.
            TimedOut: `outcome` says whether it may be stored.
        """
        if wait is not True and not check_flag("wait", wait):
            with within(seconds_of(timeout, self._store._timeout)):
                self._send_later(encode_message(body, key, tag, properties, queue))
            return None
        if (seconds := seconds_of(timeout, self._store._timeout)) is not None:
            with within(seconds):
                return self.send(body, key=key, tag=tag, properties=properties, queue=queue)
        row = encode_message(body, key, tag, properties, queue)
        if (router := self._store._several) is not None:
            return settled(router.put_messages(self._messages, [row], without_queues, itemgetter(1)))
        connection = self._store._only("a broker")
        stored: SendResult = connection.put(self._messages(connection), row)
        return stored

    def send_many(
        self, messages: Iterable[NewMessage | bytes], *, timeout: float | None = None
    ) -> list[SendResult | EventStoreError]:
        """Sends messages, or bodies, in this order. Returns where each is stored, or an error."""
        if (seconds := seconds_of(timeout, self._store._timeout)) is not None:
            with within(seconds, of_wait=timeout is None):
                return self.send_many(messages)
        if (router := self._store._several) is not None:
            return router.put_messages(self._messages, encoded_messages(taken_in_time(messages)), without_queues, itemgetter(1))
        connection = self._store._only("a broker")
        return connection.put_many(self._messages(connection), messages, encoded_messages)

    def _send_later(self, row: WireMessage) -> None:
        if self._store._several is not None:
            checked_row(without_queues([row]))
        self._store._one_way.add(self._put_rows, row, message_bytes(row))

    def _put_rows(self, rows: list[WireMessage]) -> list[SendResult | EventStoreError]:
        if (router := self._store._several) is not None:
            return router.put_messages(self._messages, rows, without_queues, itemgetter(1))
        connection = self._store._only("a broker")
        return connection.put_many(self._messages(connection), rows, list)

    def _messages(self, connection: BlockingConnection) -> BatchQueue[Any, Any, Any]:
        return connection.session.messages(self.name, resend=self._resend)
