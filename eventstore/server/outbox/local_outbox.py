"""The outbox of a server: publishes the events of its store to a topic of its own broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.log.engine import Engine
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.pulls import Want
from eventstore.chunks.files import Files
from eventstore.domain.domain import Domain
from eventstore.errors import EventStoreError, InvalidArgument, UnknownTopic, copy_error
from eventstore.metrics import Metric, counter, gauge, text
from eventstore.model import Event
from eventstore.records.event_filter import EVERYTHING, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.records.message import Message, RawMessage, chunk_of, decode_messages
from eventstore.records.topic_names import check_name
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.outbox import BATCH_EVENTS_MAX, Outbox, Place
from eventstore.server.outbox.outbox_messages import PublishedEvents
from eventstore.server.outbox.outbox_resume import TopicState
from eventstore.store.embedded import EmbeddedStore

CHECKPOINT: Final = "published.json"
_CHECKPOINT_OF: Final = "published-{}.json"  # of a topic that the domain publishes to
_MESSAGES_PER_TURN: Final = 256
_LOOK_S: Final = 1.0


def check_publish(topic: str | None, domain: Domain, *, with_broker: bool) -> None:
    """Raises InvalidArgument if a name is not valid for a topic, two outboxes have the same, or the server has no broker."""
    given = [] if topic is None else [("publish", topic)]
    for field, name in (*given, *(("topic of @publishes", name) for name in domain.publications)):
        check_name(field, name)
        if not with_broker:
            raise InvalidArgument(
                f"{field} is {name!r}, but broker is false; switch it on, or publish to another server with "
                "`eventstore publish`",
                field=field,
                value=name,
            )
    if topic in domain.publications:
        raise InvalidArgument(
            f"publish is {topic!r}, a topic that the domain publishes some events to; name another one",
            field="publish",
            value=topic,
        )


class _WatchedOutbox:
    """One outbox of a server, and its oldest event that was not published a moment ago."""

    def __init__(self, store: EmbeddedStore, events: StoreEvents, outbox: Outbox) -> None:
        self.outbox = outbox
        self._store = store
        self._events = events
        self._oldest: Event | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_at_oldest)
            await self.outbox.run()

    async def _look_at_oldest(self) -> None:
        while True:
            await trio.sleep(_LOOK_S)
            with suppress(EventStoreError, OSError):  # publishing reads it as well, and reports that
                self._oldest = await self._events.event(self.outbox.place + 1) if self.backlog else None

    @property
    def lag_microseconds(self) -> int:
        oldest = self._oldest
        return max(0, time.time_ns() // 1_000 - oldest.timestamp) if oldest is not None and self.backlog else 0

    @property
    def backlog(self) -> int:
        return max(0, self._store.engine.visible_sequence - self.outbox.place)


class Publishing:
    """The outboxes of a server: of the setting `publish`, for all events, and of each topic that the domain publishes to. They
    do not wait for each other."""

    def __init__(
        self, store: EmbeddedStore, broker: Broker | None, topic: str | None, domain: Domain, folder: Path,
        files: Files | None = None,
    ) -> None:  # fmt: skip
        """`folder`: of the checkpoints."""
        self._watched: list[_WatchedOutbox] = []
        if broker is None:
            return
        if topic is not None:
            events = StoreEvents(store)
            file = CheckpointFile(folder / CHECKPOINT, files)
            self._watched.append(_WatchedOutbox(store, events, Outbox(events, BrokerTopic(broker, topic), file)))
        for publication in domain.publications.values():
            events = StoreEvents(store, EventFilter(types=frozenset(publication.kinds)))
            file = CheckpointFile(folder / _CHECKPOINT_OF.format(publication.topic), files)
            messages = PublishedEvents(events.store, publication)
            outbox = Outbox(events, BrokerTopic(broker, publication.topic), file, messages)
            self._watched.append(_WatchedOutbox(store, events, outbox))

    @property
    def attention(self) -> str | None:
        """Returns why publishing is stuck, if it is."""
        said = [
            f"{'publishing is refused' if each.refused else 'events are not published; this is retried'}: {each.failure}"
            for each in self.outboxes
            if each.failure is not None
        ]
        return "; ".join(said) or None

    @property
    def outboxes(self) -> list[Outbox]:
        return [each.outbox for each in self._watched]

    @property
    def lag_microseconds(self) -> int:
        """The age of the oldest event that was not published a second ago; 0 if there is none now."""
        return max((each.lag_microseconds for each in self._watched), default=0)

    @property
    def backlog(self) -> int:
        """The number of events that are not published yet, of the topic that is furthest behind."""
        return max((each.backlog for each in self._watched), default=0)

    async def run(self) -> None:
        """Publishes until cancelled."""
        async with trio.open_nursery() as nursery:
            for each in self._watched:
                nursery.start_soon(each.run)


PUBLISHING_METRICS: Final[tuple[Metric[Publishing], ...]] = (
    counter(
        "events_published", "events sent to the topics that are published to, by this process",
        lambda publishing: sum(each.published for each in publishing.outboxes),
    ),
    gauge(
        "published_sequence", "the sequence up to which all events are published, to every topic; 0 if nothing is published",
        lambda publishing: min((each.place for each in publishing.outboxes), default=0),
    ),
    gauge(
        "publish_backlog", "events that are not published yet", lambda publishing: publishing.backlog,
        "it grows: the broker does not keep up, or publishing fails, for the reason in `/health` and in the log",
    ),
    gauge(
        "publish_lag_microseconds", "age of the oldest event that is not published; 0: none",
        lambda publishing: publishing.lag_microseconds,
        "it grows",
    ),
    gauge(
        "publish_refused", "1: a topic or its checkpoint ends with events that the store does not have",
        lambda publishing: any(each.refused for each in publishing.outboxes),
        "it is 1: see [BROKER](BROKER.md#events-as-messages)",
    ),
    text(
        "publish_error", "why nothing is published, if so",
        lambda publishing: next((each.failure for each in publishing.outboxes if each.failure is not None), None),
    ),
    counter(
        "publish_failures", "batches that failed and were sent again",
        lambda publishing: sum(each.failures for each in publishing.outboxes),
        "it grows",
    ),
)  # fmt: skip


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
        page = await self._store.scan_page(sequence - 1, EVERYTHING, 1)
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

    async def send(self, messages: Sequence[RawMessage]) -> list[Place]:
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


def is_durable(engine: Engine, position: int, *, sync: bool) -> bool:
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
        self._places: list[Place] = []
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

    async def places(self) -> list[Place]:
        """Waits until all are stored, and returns their places. Raises EventStoreError if one was not stored."""
        await self._done.wait()
        if self.error is not None:
            raise copy_error(self.error)
        return self._places
