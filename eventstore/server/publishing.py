"""Publishes the events of this server's store to a topic of this server's broker: both ends of an outbox in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.engine import Engine
from eventstore.broker.message import Message, RawMessage, chunk_of, decode_messages
from eventstore.broker.names import check_name
from eventstore.broker.pulls import Want
from eventstore.broker.sending import Outcome
from eventstore.errors import EventStoreError, InvalidArgument, UnknownTopic, again
from eventstore.model import Event
from eventstore.server.event_message import Origin, origin_of_event
from eventstore.server.outbox import BATCH_EVENTS_MAX, CheckpointFile, Outbox, Place
from eventstore.server.outbox_place import TopicState
from eventstore.store.embedded import EmbeddedStore, Stats
from eventstore.store.event_filter import EventFilter
from eventstore.store.page import decode_page

CHECKPOINT: Final = "published.json"
_EVERYTHING: Final = EventFilter()
_MESSAGES_PER_TURN: Final = 256


def check_publish(topic: str | None, *, with_broker: bool) -> None:
    """Raises InvalidArgument: no topic may be called so, or there is no broker here."""
    if topic is None:
        return
    check_name("publish", topic)
    if not with_broker:
        raise InvalidArgument(
            f"publish is {topic!r}, but broker is false; switch it on, or publish to another server with `eventstore publish`",
            field="publish",
            value=topic,
        )


class Publishing:
    """The outbox of a server. `topic` None: nothing is published."""

    def __init__(self, store: EmbeddedStore, broker: Broker | None, topic: str | None, folder: Path) -> None:
        """`folder`: where the checkpoint is kept."""
        self._store = store
        self._outbox: Outbox | None = None
        if topic is not None and broker is not None:
            self._outbox = Outbox(StoreEvents(store), BrokerTopic(broker, topic), CheckpointFile(folder / CHECKPOINT))

    @property
    def attention(self) -> str | None:
        """Why it does not get on, as long as it does not."""
        failure = None if self._outbox is None else self._outbox.failure
        return None if failure is None else f"events are not published, which is tried again: {failure}"

    async def run(self) -> None:
        """Publishes until cancelled."""
        if self._outbox is not None:
            await self._outbox.run()

    def figures(self) -> Stats:
        """How far it is, by name."""
        outbox = self._outbox
        return {
            "events_published": 0 if outbox is None else outbox.published,
            "published_sequence": 0 if outbox is None else outbox.place,
            "publish_backlog": 0 if outbox is None else max(0, self._store.engine.visible_sequence - outbox.place),
            "publish_failures": 0 if outbox is None else outbox.failures,
        }


class StoreEvents:
    """The source: an open store. Reads as subscriptions do, and only while appends do not wait for room."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.store = str(store.opened.uuid)

    async def events(self, after: int) -> list[Event]:
        committer = self._store.committer
        while committer.engine.visible_sequence <= after:
            await committer.advanced.park()
        await committer.wait_for_room()
        page = await self._store.scan_page(after, _EVERYTHING, BATCH_EVENTS_MAX)
        return [event for event in decode_page(page.records) if event.sequence > after]

    async def origin(self, sequence: int) -> Origin | None:
        if not 0 < sequence <= self._store.engine.visible_sequence:
            return None
        page = await self._store.scan_page(sequence - 1, _EVERYTHING, 1)
        found = next((event for event in decode_page(page.records) if event.sequence == sequence), None)
        return None if found is None else origin_of_event(found)


class BrokerTopic:
    """The target: a topic of an open broker."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._id = 0
        self.topic = topic

    async def open(self) -> TopicState:
        broker = self._broker
        if self.topic not in broker.topics.by_name:
            await broker.administration.create_topic(self.topic)
        found = broker.topics.get(self.topic)
        self._id = found.id
        queues = {number: broker.bounds(self.topic, number) for number in found.queues}
        return TopicState(f"{broker.opened.uuid}/{found.id}", queues)

    async def is_same(self) -> bool:
        found = self._broker.topics.by_name.get(self.topic)
        return found is not None and found.id == self._id

    async def messages(self, queue: int, low: int, high: int) -> list[Message]:
        found: list[Message] = []
        while low < high:
            (page,) = await self._broker.pulls.pull([Want(self.topic, queue, low)], messages_max=high - low)
            found += decode_messages(page.records, page.count)
            if page.next_offset <= low:
                break
            low = page.next_offset
        return [message for message in found if message.queue_offset < high]

    async def send(self, messages: Sequence[RawMessage]) -> list[Place]:
        """Submits a part of them in each turn of the loop, without waiting for the disk in between."""
        committer, topic, flight = self._broker.committer, self._broker.topics.get(self.topic), _Flight(len(messages))
        if topic.id != self._id:
            raise UnknownTopic(f"topic {self.topic!r} was deleted, and created again", topic=self.topic)
        for start in range(0, len(messages), _MESSAGES_PER_TURN):
            await trio.lowlevel.checkpoint()
            await committer.wait_for_room()
            if flight.error is not None:  # what lies behind a part that was not written must not be written either
                break
            committer.submit(topic, messages[start : start + _MESSAGES_PER_TURN], flight.deliver, self, own=True)
            committer.kick()
        return await flight.places()

    def is_durable(self, position: int) -> bool:
        return is_durable(self._broker.engine, position, sync=self._broker.settings.durability == "sync")


def is_durable(engine: Engine, position: int, *, sync: bool) -> bool:
    """Whether a message that was acknowledged outlasts a crash of the machine. Where writes are not synced, it does once its
    chunk was synced that far, or was completed.
    """
    (chunk, offset), (visible, _) = chunk_of(position), chunk_of(engine.visible_position)
    return sync or chunk < visible or (chunk == engine.front.chunk and offset < engine.front.durable)


class _Flight:
    """Messages on their way to the log."""

    def __init__(self, count: int) -> None:
        self.error: EventStoreError | None = None
        self._left = count
        self._places: list[Place] = []
        self._landed = trio.Event()

    def deliver(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, EventStoreError):
                self.error = self.error or outcome
            else:
                self._places.append(outcome)
        self._left -= len(outcomes)
        if self.error is not None or not self._left:
            self._landed.set()

    async def places(self) -> list[Place]:
        """Where they lie, once they do. Raises EventStoreError: they do not all."""
        await self._landed.wait()
        if self.error is not None:
            raise again(self.error)
        return self._places
