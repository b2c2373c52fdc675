"""The two ends of a server's outbox: its store, and a topic of its own broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.pulls import Want
from eventstore.errors import EventStoreError, UnknownTopic, copy_error
from eventstore.model import Event
from eventstore.records.event_filter import EVERYTHING, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.records.message import Message, RawMessage, chunk_of, decode_messages
from eventstore.server.outbox.outbox_ends import BATCH_EVENTS_MAX, MessagePosition
from eventstore.server.outbox.outbox_resume import TopicState
from eventstore.store.embedded import EmbeddedStore

_MESSAGES_PER_TURN: Final = 256


class StoreEvents:
    """The source: an open store. It is read as by subscriptions, durable events alone, but not while appends wait for room."""

    def __init__(self, store: EmbeddedStore, wanted: EventFilter = EVERYTHING) -> None:
        self._store = store
        self._wanted = wanted
        self.store = str(store.opened.uuid)

    async def events(self, after: int) -> tuple[list[Event], int]:
        committer = self._store.committer
        while committer.engine.durable_sequence <= after:
            await committer.advanced.park()
        await committer.wait_for_room()
        page = await self._store.scan_page(after, self._wanted, BATCH_EVENTS_MAX, durable=True)
        return self._wanted.select(decode_page(page.records), after), page.next

    async def event(self, sequence: int) -> Event | None:
        if not 0 < sequence <= self._store.engine.visible_sequence:
            return None
        page = await self._store.scan_page(sequence - 1, EVERYTHING, 1, whole=True)
        return next((event for event in decode_page(page.records) if event.sequence == sequence), None)


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

    async def send(self, messages: Sequence[RawMessage]) -> list[MessagePosition]:
        """Submits some messages per turn of the event loop, without waiting for the disk in between."""
        committer, topic, sending = self._broker.committer, self._broker.topics.get(self.topic), _Sending(len(messages))
        if topic.id != self._id:
            raise UnknownTopic(f"topic {self.topic!r} was deleted, and created again", topic=self.topic)
        for start in range(0, len(messages), _MESSAGES_PER_TURN):
            await trio.lowlevel.checkpoint()
            await committer.wait_for_room()
            if sending.error is not None:  # nothing may be written after a part that was not
                break
            committer.submit(topic, messages[start : start + _MESSAGES_PER_TURN], sending.deliver, self, own=True)
            committer.kick()
        return await sending.places()

    def is_durable(self, position: int) -> bool:
        return is_durable(self._broker.engine, position, sync=self._broker.settings.durability == "sync")


def is_durable(engine: MessageEngine, position: int, *, sync: bool) -> bool:
    """Whether an acknowledged message survives a crash of the machine.

    Without synced writes, it does once its chunk was synced up to it, or was completed.
    """
    (chunk, offset), (visible, _) = chunk_of(position), chunk_of(engine.visible_position)
    return sync or chunk < visible or (chunk == engine.front.chunk and offset < engine.front.durable)


class _Sending:
    """Messages submitted to the log and not all acknowledged."""

    def __init__(self, count: int) -> None:
        self.error: EventStoreError | None = None
        self._left = count
        self._places: list[MessagePosition] = []
        self._done = trio.Event()

    def deliver(self, outcomes: list[SendOutcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, EventStoreError):
                self.error = self.error or outcome
            else:
                self._places.append(outcome)
        self._left -= len(outcomes)
        if self.error is not None or not self._left:
            self._done.set()

    async def places(self) -> list[MessagePosition]:
        """Waits until all are stored, and returns their places. Raises EventStoreError if one was not stored."""
        await self._done.wait()
        if self.error is not None:
            raise copy_error(self.error)
        return self._places
