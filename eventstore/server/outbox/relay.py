"""Publishes the events of one server to a topic of another, or of the same one: an outbox in a separate process.

It keeps nothing that must not be lost: the place to resume at is read from the topic. If the connection breaks, a batch is not
simply sent again; the topic is read first. Before each batch it checks that the topic is still the same one, so that a broker
that lost the end of its log meanwhile (durability `async`) gets that again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from eventstore.client.aio.routing.merged_streams import MergedSubscription
from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.streams import SubscriptionStream
from eventstore.client.aio.wait_for_server import wait_for_server
from eventstore.client.session.batches import ROWS_PER_TURN
from eventstore.client.session.message_rows import NewMessage
from eventstore.domain.event_batches import event_at, uuid_and_last_sequence
from eventstore.errors import EventStoreError, UnknownTopic, copy_error
from eventstore.fields import check_text
from eventstore.model import CaughtUp, Event
from eventstore.records.message import Message, RawMessage, decode_properties, parse_message_id
from eventstore.server.bootstrap import check_checkpoint_folder, stop_on_signals
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.outbox import BATCH_EVENTS_MAX, Outbox, Place
from eventstore.server.outbox.outbox_resume import TopicState

_FRAME_MESSAGES: Final = ROWS_PER_TURN  # sent as one frame; the next frame waits until these are in the log
_FRAME_BYTES: Final = 256 * 1024
_PROGRESS_S: Final = 0.2
_PULLED_MESSAGES: Final = 1_024


async def relay(
    source: str,
    target: str,
    topic: str,
    checkpoint: Path | None = None,
    *,
    until_caught_up: bool = False,
    past_lost: bool = False,
    wait_s: float = 0.0,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> int:
    """Publishes until a signal, or until all events present at the start are published. Returns how many were published.

    `source`, `target`: addresses. `checkpoint`: a file with the place to resume at if retention has deleted the whole topic.
    `past_lost`: continues after events that the topic has and the store has not. `wait_s`: how long to wait for a server that
    is not up yet. `on_progress` is called regularly with the sequence up to which all events are published, the last sequence
    at the start, and the number of events published by this call.

    Raises:
        InvalidArgument: the name is not valid for a topic, or the checkpoint's folder does not exist.
        Diverged: the topic or the checkpoint ends with events that the store does not have; in an exception group.
        ConnectionLost: a server cannot be reached within `wait_s` at the start; in an exception group.
    """
    check_text("topic", topic)
    check_checkpoint_folder(checkpoint)
    outbox: Outbox | None = None
    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        await nursery.start(stop_on_signals, stopping)

        async def stop() -> None:
            await stopping.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop)
        async with _connect(source, wait_s) as events, _connect(target, wait_s) as broker:
            file = None if checkpoint is None else CheckpointFile(checkpoint)
            outbox = Outbox(RemoteEvents(events), RemoteTopic(broker, topic), file, past_lost=past_lost)
            _, last = await uuid_and_last_sequence(events)
            if on_progress is not None:
                nursery.start_soon(_report_regularly, outbox, last, on_progress)
            await outbox.run(last if until_caught_up else None, end_refused=True)
        nursery.cancel_scope.cancel()
    return 0 if outbox is None else outbox.published


def _connect(address: str, wait_s: float) -> AbstractAsyncContextManager[NetworkStore]:
    def on_waiting(error: EventStoreError) -> None:
        structlog.get_logger("eventstore.relay").warning("waiting for a server", error=error.message, wait_s=wait_s)

    return wait_for_server(address, name="eventstore publish", wait_s=wait_s, on_waiting=on_waiting)


async def _report_regularly(outbox: Outbox, last: int, on_progress: Callable[[int, int, int], None]) -> None:
    """Reports progress regularly, and once more at the end."""
    try:
        while True:
            on_progress(outbox.place, last, outbox.published)
            await trio.sleep(_PROGRESS_S)
    finally:
        on_progress(outbox.place, last, outbox.published)


class RemoteEvents:
    """The source: a client of another server. One subscription, which yields durable events alone, lasts until a failure."""

    def __init__(self, store: NetworkStore) -> None:
        self._store = store
        self._stream: SubscriptionStream | MergedSubscription | None = None
        self._taken = 0  # the last event that was taken from the stream
        self.store = _uuid(store)

    async def events(self, after: int) -> tuple[list[Event], int]:
        stream, self._stream = self._stream, None
        if stream is None or self._taken != after:
            if stream is not None:
                await stream.aclose()
            stream = self._store.subscribe(after)
        found = [await _next_event(stream)]
        with trio.CancelScope(deadline=-inf):  # what has arrived comes without waiting
            while len(found) < BATCH_EVENTS_MAX:
                found.append(await _next_event(stream))
        self._stream, self._taken = stream, found[-1].sequence
        return found, self._taken

    async def event(self, sequence: int) -> Event | None:
        return await event_at(self._store, sequence) if sequence > 0 else None


async def _next_event(stream: AsyncIterator[Event | CaughtUp]) -> Event:
    while not isinstance(item := await anext(stream), Event):
        pass
    return item


class RemoteTopic:
    """The target: a client of another server. A topic whose queues became shorter is another topic of the same name."""

    def __init__(self, store: NetworkStore, topic: str) -> None:
        self._store = store
        self._sender = store.topic(topic, resend=False)
        self._last: tuple[int, int, str] | None = None  # queue, offset and id of the message sent last
        self._ends: dict[int, int] = {}
        self.topic = topic

    async def open(self) -> TopicState:
        broker = self._store.broker
        await broker.create_topic(self.topic, if_missing=True)
        queues = {each.queue: (each.begin, each.end) for each in await broker.queues(self.topic)}
        self._last, self._ends = None, {number: end for number, (_, end) in queues.items()}
        return TopicState(_uuid(self._store), queues)

    async def is_same(self) -> bool:
        last, ends = self._last, dict(self._ends)  # copied, because other tasks change them while this waits
        queues = {each.queue: each for each in await self._store.broker.queues(self.topic)}
        if not queues.keys() & ends.keys() or any(each.end < ends.get(number, 0) for number, each in queues.items()):
            return False
        if last is None or last[0] not in queues or last[1] < queues[last[0]].begin:
            return True
        found = await self._store.broker.message_at(self.topic, last[0], last[1])
        return found is not None and found.message_id == last[2]

    async def messages(self, queue: int, low: int, high: int) -> list[Message]:
        found: list[Message] = []
        while low < high:
            pulled = await self._store.broker.pull([(self.topic, queue, low, None)], min(high - low, _PULLED_MESSAGES))
            found += pulled.messages()
            following = pulled.queues[0].next_offset
            if following <= low:
                break
            low = following
        return [message for message in found if message.queue_offset < high]

    async def send(self, messages: Sequence[RawMessage]) -> list[Place]:
        if not await self.is_same():
            raise UnknownTopic(f"topic {self.topic!r} was deleted and created again, or lost its end", topic=self.topic)
        places: list[Place] = []
        for frame in _frames(messages):
            given = [NewMessage(body, key, tag, decode_properties(raw)) for body, key, tag, raw, _ in frame]
            for outcome in await self._sender.send_many(given):
                if isinstance(outcome, EventStoreError):
                    raise copy_error(outcome)
                places.append((outcome.queue, outcome.queue_offset, parse_message_id(outcome.message_id)[1]))
                self._last = outcome.queue, outcome.queue_offset, outcome.message_id
        for queue, offset, _ in places:
            self._ends[queue] = offset + 1
        return places

    def is_durable(self, position: int) -> bool:
        """Returns True: servers do not report it, and a checkpoint is used only if its message exists or was deleted."""
        return True


def _frames(messages: Sequence[RawMessage]) -> Iterator[list[RawMessage]]:
    frame: list[RawMessage] = []
    size = 0
    for message in messages:
        length = len(message[0]) + len(message[3] or b"")
        if frame and (len(frame) == _FRAME_MESSAGES or size + length > _FRAME_BYTES):
            yield frame
            frame, size = [], 0
        frame.append(message)
        size += length
    if frame:
        yield frame


def _uuid(store: NetworkStore) -> str:
    return str(UUID(bytes=store.store_uuid))
