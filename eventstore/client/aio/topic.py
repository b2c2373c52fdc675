"""A topic of the broker, to send messages to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eventstore.client.aio.connection import Connection
from eventstore.client.session.message_rows import NewMessage, SendResult, check_topic, encode_message, encoded_messages
from eventstore.errors import EventStoreError


class NetworkTopic:
    """Sends messages; those sent at the same time travel together. Tasks, or threads, may share one.

    A message whose connection is lost before the answer may be stored or not. It is sent again, and may then be stored twice:
    at least once, in order. With `resend` False it fails instead with ConnectionLost, whose `outcome` is "unknown".
    """

    def __init__(self, connection: Connection, name: str, *, resend: bool) -> None:
        self._connection = connection
        self._resend = resend
        self.name = check_topic(name)

    async def send(
        self,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
    ) -> SendResult:
        """Sends a message, which is durable when this returns (with durability `async` of the server: written).

        See `NewMessage` for limits. Messages of one key are stored in the order in which they are sent.

        Raises:
            UnknownTopic, UnknownQueue: nothing was stored.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; the message may be stored.
        """
        row = encode_message(body, key, tag, properties, queue)
        return await self._connection.put(self._connection.session.messages(self.name, resend=self._resend), row)

    async def send_many(self, messages: Iterable[NewMessage | bytes]) -> list[SendResult | EventStoreError]:
        """Sends messages, or bodies, in this order. Returns where each is stored, or an error."""
        queue = self._connection.session.messages(self.name, resend=self._resend)
        return await self._connection.put_many(queue, messages, encoded_messages)
