"""A store, a broker and the outbox between them, each side on its own simulated disk, driven step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventstore.errors import EventStoreError, UnknownTopic, copy_error
from eventstore.model import Event, NewEvent
from eventstore.records.event_message import origin_of_event, origin_of_message
from eventstore.records.event_page import decode_page
from eventstore.records.message import Message, RawMessage, chunk_of
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.local_outbox import is_durable
from eventstore.server.outbox.outbox import Outbox
from eventstore.server.outbox.outbox_ends import MessagePosition
from eventstore.server.outbox.outbox_messages import AllEvents, OutboxMessages
from eventstore.server.outbox.outbox_resume import TopicState
from eventstore.settings.broker import BrokerSettings
from eventstore.settings.store import StoreSettings
from tests.broker.stepped import Stepped as SteppedBroker
from tests.broker.stepped import raw as foreign
from tests.simulated_disk import CrashMode, SimulatedDisk
from tests.store.stepped import EVERYTHING, SMALL, Stepped, forget_directory, raw, spare_the_probe

TOPIC = "events"
OTHER = "other"
QUEUES = 3
CHECKPOINT = Path("/outbox/published.json")
PAGE_BYTES = 700


class StoreEnd:
    """The source of the outbox: the store that is open at the moment."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.store = str(world.store.opened.uuid)

    async def events(self, after: int) -> tuple[list[Event], int]:
        page = self._world.store.engine.scan(after, EVERYTHING, PAGE_BYTES, None, durable=True)
        return [event for event in decode_page(page.records) if event.sequence > after], page.next

    async def event(self, sequence: int) -> Event | None:
        engine = self._world.store.engine
        if sequence > engine.visible_sequence:
            return None
        page = engine.scan(sequence - 1, EVERYTHING, 1, 1)
        return next(event for event in decode_page(page.records) if event.sequence == sequence)


class BrokerEnd:
    """The target of the outbox: the broker that is open at the moment."""

    topic = TOPIC

    def __init__(self, world: World) -> None:
        self._world = world
        self._id = 0

    async def open(self) -> TopicState:
        broker = self._world.broker
        if TOPIC not in broker.opened.topics.by_name:
            broker.topic(TOPIC, QUEUES)
        found = broker.opened.topics.get(TOPIC)
        self._id = found.id
        return TopicState(f"{broker.opened.uuid}/{found.id}", {queue: self._world.bounds(queue) for queue in found.queues})

    async def is_same(self) -> bool:
        found = self._world.broker.opened.topics.by_name.get(TOPIC)
        return found is not None and found.id == self._id

    async def messages(self, queue: int, low: int, high: int) -> list[Message]:
        return [message for message in self._world.broker.messages(queue, low, topic=TOPIC) if message.queue_offset < high]

    async def send(self, messages: Sequence[RawMessage]) -> list[MessagePosition]:
        if not await self.is_same():
            raise UnknownTopic("another topic", topic=TOPIC)
        places: list[MessagePosition] = []
        for outcome in self._world.broker.send(*messages, topic=TOPIC):
            if isinstance(outcome, EventStoreError):
                raise copy_error(outcome)
            places.append(outcome)
        return places

    def is_durable(self, position: int) -> bool:
        broker = self._world.broker
        return is_durable(broker.engine, position, sync=broker.settings.durability == "sync")


@dataclass
class World:
    """`kept`: the messages of the topic that were in deleted chunks."""

    directory: Path
    broker_settings: BrokerSettings
    store_settings: StoreSettings = SMALL
    checkpointed: bool = True
    clock: Callable[[], float] = lambda: 1_000.0
    kept: dict[int, Message] = field(default_factory=dict)
    appended: int = 0
    store: Stepped = field(init=False)
    broker: SteppedBroker = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        forget_directory(self.directory)
        self.store_disk, self.broker_disk = SimulatedDisk(1), SimulatedDisk(2)
        self.open_store()
        self.open_broker()

    def open_store(self) -> None:
        """Starts the process of the store and its outbox."""
        self.store_disk.make_folder(CHECKPOINT.parent)
        self.store = Stepped(self.store_disk, self.directory, self.store_settings, self.clock)
        self.outbox_anew()

    def outbox_anew(self, *, past_lost: bool = False, checkpointed: bool | None = None) -> None:
        with_file = self.checkpointed if checkpointed is None else checkpointed
        file = CheckpointFile(CHECKPOINT, self.store_disk) if with_file else None
        self.outbox = Outbox(StoreEnd(self), self.topic_end(), file, self.messages(), past_lost=past_lost)

    def topic_end(self) -> BrokerEnd:
        return BrokerEnd(self)

    def messages(self) -> OutboxMessages:
        return AllEvents(str(self.store.opened.uuid))

    def open_broker(self) -> None:
        self.broker = SteppedBroker(self.broker_disk, self.broker_settings, self.clock)
        if OTHER not in self.broker.opened.topics.by_name:
            self.broker.topic(OTHER, 1)

    def crash_store(self, mode: CrashMode) -> None:
        self.store.abandon()
        spare_the_probe(self.directory)
        self.store_disk = self.store_disk.crash(mode)
        self.open_store()

    def crash_broker(self, mode: CrashMode) -> None:
        self.broker_disk = self.broker_disk.crash(mode)
        self.open_broker()

    # -- what happens in it ---------------------------------------------------------------------------------------------

    def append(self, rng: random.Random) -> None:
        """Appends a batch of commits of one to three events to a few aggregates."""
        commits = []
        for _ in range(rng.randint(1, 5)):
            self.appended += 1
            events = [
                NewEvent(rng.choice(("Opened", "a|b", "Closed")), rng.randbytes(rng.choice((0, 8, 60))).hex().encode())
                for _ in range(rng.randint(1, 3))
            ]
            commits.append(raw(f"order-{rng.randint(1, 6)}", f"c-{self.appended}-{rng.getrandbits(32)}", *events))
        self.store.append(*commits)

    async def publish(self) -> None:
        if self.outbox.place < self.store.engine.visible_sequence:
            assert await self.outbox.publish()

    async def publish_all(self) -> None:
        while self.outbox.place < self.store.engine.visible_sequence:
            await self.outbox.publish()

    def send_foreign(self, rng: random.Random) -> None:
        """Sends other messages: to the same topic, and enough to another one to complete chunks."""
        self.broker.send(
            *[foreign(b"not an event", f"order-{rng.randint(1, 6)}") for _ in range(rng.randint(1, 30))], topic=TOPIC
        )
        self.broker.send(*[foreign(bytes(600)) for _ in range(rng.randint(1, 9))], topic=OTHER)

    def sync_broker(self) -> None:
        """Flushes, as a broker with durability `async` does."""
        self.broker.engine.mark_synced(*self.broker.engine.sync_now())

    def delete_chunks(self, *, all_but: int = 2) -> None:
        """Deletes the oldest chunks, as retention does."""
        self.broker.index()
        engine = self.broker.engine
        through = engine.files.last - all_but
        if through < engine.files.first or through > engine.indexed:
            return
        state = engine.files.state(through + 1)
        assert state is not None
        for message in self.in_topic():
            if chunk_of(message.position)[0] <= through:
                self.kept[message.position] = message
        engine.forget_chunks(through, state)
        engine.delete_chunks(through)

    # -- what can be seen of it -----------------------------------------------------------------------------------------

    def bounds(self, queue: int) -> tuple[int, int]:
        log = self.broker.engine.queues[self.broker.opened.topics.get(TOPIC).id, queue]
        return log.first, log.visible_end(self.broker.engine.visible_position)

    def in_topic(self) -> list[Message]:
        """Returns all messages of the topic, in the order of the log."""
        queues = self.broker.opened.topics.get(TOPIC).queues
        found = [message for queue in queues for message in self.broker.messages(queue, self.bounds(queue)[0], topic=TOPIC)]
        return sorted(found, key=lambda message: message.position)

    def judge(self) -> int:
        """Checks that all events are in the topic, in order per aggregate. Returns the number of duplicates."""
        store = str(self.store.opened.uuid)
        seen = {**self.kept, **{message.position: message for message in self.in_topic()}}
        messages = [seen[position] for position in sorted(seen)]
        origins = [(message, origin_of_message(message, store)) for message in messages]
        events = {event.sequence: event for event in self.store.state()}
        own = [
            (message, origin) for message, origin in origins
            if origin is not None and origin.sequence in events and origin == origin_of_event(events[origin.sequence])
        ]  # fmt: skip
        first: dict[int, Message] = {}
        for message, origin in own:
            first.setdefault(origin.sequence, message)
        assert first.keys() == events.keys(), f"left out: {sorted(events.keys() - first.keys())}"
        for sequence, message in first.items():
            event = events[sequence]
            assert (message.body, message.properties["type"]) == (event.data, event.type)
        versions: dict[str, list[int]] = {}
        for message in first.values():  # in the order of the log
            assert message.key is not None
            versions.setdefault(message.key, []).append(int(message.properties["version"]))
        assert all(each == list(range(1, len(each) + 1)) for each in versions.values()), "order per aggregate"
        return len(own) - len(first)
