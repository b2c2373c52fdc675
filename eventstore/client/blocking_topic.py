"""A topic of the broker, for code without an event loop to send messages to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eventstore.client.batches import BatchQueue
from eventstore.client.calls import Flag
from eventstore.client.exchange import Exchange
from eventstore.client.messages import NewMessage, SendResult, check_topic, encode_message, encoded_messages
from eventstore.errors import EventStoreError
from eventstore.protocol.broker_requests import WireMessage


class BlockingTopic:
    """Messages that are sent at the same time travel together. Threads may share one.

    A message whose connection is lost before the answer came may be stored or not. It is sent again, and may then be stored
    twice: at least once, in order. With `resend` False it fails instead with ConnectionLost, whose `outcome` is "unknown".
    """

    def __init__(self, exchange: Exchange, name: str, *, resend: bool) -> None:
        self._exchange = exchange
        self._resend = resend
        self.name = check_topic(name)

    @property
    def _queue(self) -> BatchQueue[Flag, WireMessage, SendResult]:
        return self._exchange.session.messages(self.name, resend=self._resend)

    def send(
        self,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
    ) -> SendResult:
        """Sends a message; it is durable when this returns (with durability `async` of the server: written).

        For limits see `NewMessage`. Messages of one key are stored in the order in which they are sent.

        Raises:
            UnknownTopic, UnknownQueue: nothing was stored.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; the message may be stored.
        """
        return self._exchange.put(self._queue, encode_message(body, key, tag, properties, queue))

    def send_many(self, messages: Iterable[NewMessage | bytes]) -> list[SendResult | EventStoreError]:
        """Sends messages, or bodies, in this order; what became of each: where it is, or an error."""
        return self._exchange.put_all(self._queue, messages, encoded_messages)
