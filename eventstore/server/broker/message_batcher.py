"""The message batcher: all messages sent to a topic in one turn of the gate, from all connections, become one batch.

While more than 80 % of the bytes that may wait for the disk do, nothing is read from connections that send messages. Others
are not delayed: consumers, and clients that append events, which wait in a separate buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.topics import Topic
from eventstore.errors import EventStoreError, ShuttingDown, copy_error
from eventstore.flat import Scalar
from eventstore.protocol import encode_error, sent_values
from eventstore.protocol.broker_requests import SendMessages, WireMessage
from eventstore.records.topic_names import check_name
from eventstore.server.net.connection import HELD_BY_MESSAGES, ServerConnection
from eventstore.server.net.deferred_replies import explain_failure
from eventstore.server.net.gate import Gate
from eventstore.server.requests.batch_replies import BatchReplies, error_text_bytes_max

_log = logging.getLogger(__name__)


class _Batch(BatchReplies):
    """Messages for one topic, with the requests that sent them."""

    __slots__ = ("messages", "topic")
    of_commits = False

    def __init__(self, gate: Gate, topic: Topic) -> None:
        super().__init__(gate, _values)
        self.topic = topic
        self.messages: list[WireMessage] = []


class MessageBatcher:
    """Collects the messages of a turn. While `stopping`, new ones are refused and those under way are finished."""

    def __init__(self, gate: Gate, broker: Broker, nursery: trio.Nursery) -> None:
        self._gate = gate
        self._broker = broker
        self._nursery = nursery
        self.batches: dict[str, _Batch] = {}
        self._creating: dict[str, list[tuple[ServerConnection, int, SendMessages]]] = {}
        self._creating_bytes = 0
        self._created = trio.lowlevel.ParkingLot()
        self._held: set[ServerConnection] = set()
        self.stopping = False

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait for the disk, or for their topic to be created."""
        return self._broker.committer.waiting_bytes + self._creating_bytes

    @property
    def _full(self) -> bool:
        return self.waiting_bytes > self._broker.committer.full_bytes

    @property
    def held(self) -> int:
        """The number of connections that are not read until there is room."""
        return len(self._held)

    def send(self, connection: ServerConnection, request_id: int, request: SendMessages) -> None:
        """Takes messages; the request is answered when they are durable.

        Raises:
            ShuttingDown, UnknownTopic, InvalidArgument, Poisoned
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        broker, topic = self._broker, request.topic
        if broker.engine.failed is not None:
            raise copy_error(broker.engine.failed)
        if topic in self._creating:
            self._wait_for_topic(connection, request_id, request)
        elif broker.settings.create_topics and topic not in broker.topics.by_name:
            check_name("topic", topic)
            self._creating[topic] = []
            self._wait_for_topic(connection, request_id, request)
            self._nursery.start_soon(self._create, topic)
        else:
            found = broker.check_sendable(topic)
            self._gate.owe(connection)
            self._take(connection, request_id, request, found)
        connection.note_use(f"sends to {topic}")

    def _take(self, connection: ServerConnection, request_id: int, request: SendMessages, topic: Topic) -> None:
        batch = self.batches.get(request.topic)
        if batch is None:
            batch = self.batches[request.topic] = _Batch(self._gate, topic)
        batch.requests.append((connection, request_id, len(request.messages), connection.request_bytes))
        batch.messages += request.messages

    def end_turn(self) -> None:
        """Hands the batches to the broker."""
        batches, self.batches = self.batches, {}
        for batch in batches.values():
            try:
                self._broker.committer.submit(batch.topic, batch.messages, batch.deliver, batch.source)
            except EventStoreError as error:
                batch.refuse(error)
            except Exception:  # a bug of ours that one client triggered; only the connections of its batch are affected
                _log.exception("sending failed; its connections are closed")
                batch.give_up()
        self._broker.committer.kick()
        if self._full:
            for batch in batches.values():
                for connection, _, _, _ in batch.requests:
                    self._hold(connection)

    # -- flow control -------------------------------------------------------------------------------------------------

    def _hold(self, connection: ServerConnection) -> None:
        if not self._held:
            self._nursery.start_soon(self._release_when_there_is_room)
        self._held.add(connection)
        self._gate.hold(connection, HELD_BY_MESSAGES)

    async def _release_when_there_is_room(self) -> None:
        while self._full:
            if self._broker.committer.full:
                await self._broker.committer.wait_for_room()
            else:
                await self._created.park()
        held, self._held = self._held, set()
        for connection in held:
            self._gate.hold(connection, HELD_BY_MESSAGES, False)
        self._gate.flush()

    # -- topics that are created by sending to them -------------------------------------------------------------------

    def _wait_for_topic(self, connection: ServerConnection, request_id: int, request: SendMessages) -> None:
        self._gate.owe(connection)
        self._creating[request.topic].append((connection, request_id, request))
        self._creating_bytes += _bytes_of(request)
        if self._full:
            self._hold(connection)

    async def _create(self, topic: str) -> None:
        """Creates the topic; messages sent to it meanwhile wait, in order."""
        found: Topic | EventStoreError
        try:
            await self._broker.administration.ensure_topic(topic, self._broker.settings.default_queues)
            found = self._broker.check_sendable(topic)
        except Exception as error:
            found = explain_failure(error)
        for connection, request_id, request in self._creating.pop(topic):
            self._creating_bytes -= _bytes_of(request)
            if isinstance(found, EventStoreError):
                self._gate.answer(connection, encode_error(request_id, found))
            else:
                self._take(connection, request_id, request, found)
        self.end_turn()
        self._created.unpark_all()
        self._gate.flush()


def _bytes_of(request: SendMessages) -> int:
    """Returns about how many bytes its messages take; whether they are valid is checked later."""
    return sum(len(value) for message in request.messages for value in message[:4] if isinstance(value, bytes | str))


def _values(outcomes: Sequence[SendOutcome], count: int) -> list[Scalar]:
    values: list[Scalar] = []
    for outcome in outcomes:
        if isinstance(outcome, EventStoreError):
            values += sent_values(outcome, error_text_bytes_max(count))
        else:
            values += outcome
    return values
