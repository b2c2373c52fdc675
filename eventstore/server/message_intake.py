"""The intake of messages: all that is sent to a topic in one turn of the gate, from all connections, becomes one batch.

Where 80 % of what may wait for the disk does, nothing more is taken from whoever sends messages, until there is room. Others
are not held up: consumers, and whoever appends events, which wait in a buffer of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.names import check_name
from eventstore.broker.sending import Outcome
from eventstore.errors import EventStoreError, ShuttingDown, again
from eventstore.flat import Scalar
from eventstore.protocol import encode_error, sent_values
from eventstore.protocol.broker_requests import SendMessages, WireMessage
from eventstore.server.askers import Askers
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.replies import failure_of

_log = logging.getLogger(__name__)


class _Batch(Askers):
    """Messages for one topic, and who sent which part of them."""

    __slots__ = ("messages",)

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate, _values)
        self.messages: list[WireMessage] = []


class MessageIntake:
    """Collects the messages of a turn. `stopping`: new ones are refused, those on their way are finished."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self._gate: Gate | None = None
        self._batches: dict[str, _Batch] = {}
        self._creating: dict[str, list[tuple[Connection, int, SendMessages]]] = {}
        self._creating_bytes = 0
        self._created = trio.lowlevel.ParkingLot()
        self._held: set[Connection] = set()
        self.stopping = False

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def waiting_bytes(self) -> int:
        """What is on its way to the disk, or waits for its topic to be created."""
        return self._broker.committer.waiting_bytes + self._creating_bytes

    @property
    def _full(self) -> bool:
        return self.waiting_bytes > self._broker.committer.full_bytes

    @property
    def held(self) -> int:
        """How many connections nothing is taken from until there is room."""
        return len(self._held)

    def send(self, connection: Connection, request_id: int, request: SendMessages) -> None:
        """The answer follows when the messages are durable.

        Raises:
            ShuttingDown, UnknownTopic, InvalidArgument, Poisoned
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        broker, topic = self._broker, request.topic
        if broker.engine.failed is not None:
            raise again(broker.engine.failed)
        if topic in self._creating:
            self._wait_for_topic(connection, request_id, request)
        elif broker.settings.create_topics and topic not in broker.topics.by_name:
            check_name("topic", topic)
            self._creating[topic] = []
            self._wait_for_topic(connection, request_id, request)
            self._nursery.start_soon(self._create, topic)
        else:
            broker.check_sendable(topic)
            connection.owed += 1
            self._take(connection, request_id, request)
        if self._full:
            self._hold(connection)

    def _take(self, connection: Connection, request_id: int, request: SendMessages) -> None:
        batch = self._batches.get(request.topic)
        if batch is None:
            assert self._gate is not None
            batch = self._batches[request.topic] = _Batch(self._gate)
        batch.requests.append((connection, request_id, len(request.messages)))
        batch.messages += request.messages

    def end_turn(self) -> None:
        """Hands the batches over."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for topic, batch in batches.items():
            try:
                self._broker.submit(topic, batch.messages, batch.deliver, batch.source)
            except EventStoreError as error:
                batch.refuse(error)
            except Exception:  # our own bug, which some client has found: it must not find it for all of them
                _log.exception("sending failed; its connections are closed")
                batch.give_up()
        self._broker.committer.kick()
        if self._full:
            for batch in batches.values():
                for connection, _, _ in batch.requests:
                    self._hold(connection)

    # -- flow control -------------------------------------------------------------------------------------------------

    def _hold(self, connection: Connection) -> None:
        assert self._gate is not None
        if not self._held:
            self._nursery.start_soon(self._let_go_when_there_is_room)
        self._held.add(connection)
        connection.held = True
        self._gate.look_again(connection)

    async def _let_go_when_there_is_room(self) -> None:
        assert self._gate is not None
        while self._full:
            if self._broker.committer.full:
                await self._broker.committer.wait_for_room()
            else:
                await self._created.park()
        held, self._held = self._held, set()
        for connection in held:
            connection.held = False
            self._gate.look_again(connection)
        self._gate.flush()

    # -- topics that are created by sending to them -------------------------------------------------------------------

    def _wait_for_topic(self, connection: Connection, request_id: int, request: SendMessages) -> None:
        connection.owed += 1
        self._creating[request.topic].append((connection, request_id, request))
        self._creating_bytes += _bytes_of(request)

    async def _create(self, topic: str) -> None:
        """What is sent to the topic meanwhile waits, in order."""
        assert self._gate is not None
        refusal: EventStoreError | None = None
        try:
            await self._broker.administration.ensure_topic(topic, self._broker.settings.default_queues)
        except Exception as error:
            refusal = failure_of(error)
        for connection, request_id, request in self._creating.pop(topic):
            self._creating_bytes -= _bytes_of(request)
            if refusal is None:
                self._take(connection, request_id, request)
            else:
                connection.owed -= 1
                self._gate.send(connection, encode_error(request_id, refusal))
        self.end_turn()
        self._created.unpark_all()
        self._gate.flush()


def _bytes_of(request: SendMessages) -> int:
    """About what its messages take; whether they are any is checked later."""
    return sum(len(value) for message in request.messages for value in message[:4] if isinstance(value, bytes | str))


def _values(outcomes: Sequence[Outcome], text_bytes_max: int) -> list[Scalar]:
    values: list[Scalar] = []
    for outcome in outcomes:
        values += sent_values(outcome, text_bytes_max) if isinstance(outcome, EventStoreError) else outcome
    return values
