"""A broker on a simulated disk, driven step by step on one thread: nothing happens unless the test does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventstore.broker.log.engine import MessageEngine, WriteResult
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.opening import OpenBroker, open_broker_folder
from eventstore.broker.topics import Topic
from eventstore.chunks.files import Files
from eventstore.errors import EventStoreError
from eventstore.records.message import Message, RawMessage, decode_messages
from eventstore.records.tag_filter import parse_tags
from eventstore.settings.broker import BrokerSettings

DATA = Path("/data")
SMALL = BrokerSettings(
    chunk_size_bytes=8192, preallocate_bytes=4096, queue_chunk_entries=16, recent_messages_max=10, retry_delays_s=(1.0, 2.0)
)


def raw(body: bytes = b"body", key: str | None = None, tag: str | None = None, queue: int | None = None) -> RawMessage:
    return body, key, tag, None, queue


@dataclass
class Stepped:
    """An open broker and its disk."""

    disk: Files
    settings: BrokerSettings = SMALL
    clock: Callable[[], float] = lambda: 1_000.0
    memory: Callable[[], float] = lambda: 0.0
    opened: OpenBroker = field(init=False)

    def __post_init__(self) -> None:
        self.opened = open_broker_folder(
            DATA, self.settings, files=self.disk, clock=self.clock, memory=self.memory, monotonic=self.clock
        )

    @property
    def engine(self) -> MessageEngine:
        return self.opened.engine

    def topic(self, name: str = "orders", queues: int = 2) -> None:
        self.opened.topics.create(name, queues)

    def send(self, *messages: RawMessage, topic: str = "orders") -> list[SendOutcome]:
        """Sends the messages as one batch, then writes and syncs it."""
        outcomes = self.engine.send(self.opened.topics.get(topic), messages)
        self.persist()
        return outcomes

    def persist(self) -> list[WriteResult]:
        """Writes and syncs all waiting messages, as the committer does."""
        engine, written = self.engine, []
        while (segment := engine.take()) is not None:
            try:
                engine.write(segment)
            except EventStoreError as error:
                engine.roll_back(error)
                raise
            written.append(engine.mark_written(segment, durable=self.settings.durability == "sync"))
        return written

    def index(self) -> None:
        """Writes the entries of completed chunks to the queue chunks, as housekeeping does."""
        self.engine.trim(self.engine.index_completed())

    def pull(
        self, offset: int = 0, queue: int = 0, *, topic: str = "orders", tags: str | None = None, messages_max: int = 1000,
        bytes_max: int = 1 << 20,
    ) -> QueueRead:  # fmt: skip
        engine = self.engine
        log = engine.queues[self.opened.topics.get(topic).id, queue]
        return engine.reader.pull(log, offset, engine.visible_position, messages_max, bytes_max, parse_tags(tags))

    def messages(self, queue: int = 0, offset: int = 0, *, topic: str = "orders", tags: str | None = None) -> list[Message]:
        """Returns all messages of a queue from an offset on, page by page, as a consumer reads them."""
        found: list[Message] = []
        while True:
            page = self.pull(offset, queue, topic=topic, tags=tags, messages_max=7)
            found += decode_messages(page.records, page.count)
            if page.next_offset >= page.end:
                return found
            assert page.next_offset > offset, "a page without progress"
            offset = page.next_offset

    def bodies(self, queue: int = 0, offset: int = 0, *, topic: str = "orders", tags: str | None = None) -> list[bytes]:
        return [message.body for message in self.messages(queue, offset, topic=topic, tags=tags)]

    def close(self) -> None:
        self.opened.close()

    def reopen(self) -> Stepped:
        """Closes the broker cleanly and opens it again."""
        self.close()
        return Stepped(self.disk, self.settings, self.clock, self.memory)


def numbered(count: int, size: int = 100, start: int = 0) -> Sequence[RawMessage]:
    """Returns messages for queue 0, in order."""
    return [raw(f"{number:06d}".encode().ljust(size, b"."), queue=0) for number in range(start, start + count)]


class NoMessages:
    """The bounds of queues that the log does not have, and that never had a message."""

    def __call__(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, 0

    def begins(self, topic: Topic, queues: Iterable[int]) -> list[int]:
        return [0 for _ in queues]

    ends = begins
