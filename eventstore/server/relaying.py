"""Publishes the events of one server to a topic of another, or of the same: an outbox in a process of its own.

Nothing is kept here that cannot be lost: where it goes on is read from the topic. A batch whose connection breaks is not sent
again blindly; the topic is asked first. Before each batch the topic is asked whether it is still the one it was, so that a
broker which lost the end of its log in the meantime (durability `async`) gets that again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from eventstore.broker.message import Message, RawMessage, decode_properties, parse_message_id
from eventstore.client.batches import ROWS_PER_TURN
from eventstore.client.messages import NewMessage
from eventstore.client.reaching import reached
from eventstore.client.store import NetworkStore
from eventstore.domain.following import last_sequence
from eventstore.errors import EventStoreError, UnknownTopic, again
from eventstore.fields import check_text
from eventstore.model import Event
from eventstore.server.event_message import Origin, origin_of_event
from eventstore.server.listening import check_checkpoint_folder, stop_on_signals
from eventstore.server.outbox import BATCH_EVENTS_MAX, CheckpointFile, Outbox, Place
from eventstore.server.outbox_place import TopicState

_FRAME_MESSAGES: Final = ROWS_PER_TURN  # so many travel as one: the next ones wait until these are in the log
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
    wait_s: float = 0.0,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> int:
    """Publishes until it is told to stop by a signal, or until everything there was at the start is published. How many.

    `source`, `target`: addresses. `checkpoint`: a file that says where to go on when retention has deleted all of the topic.
    `wait_s`: for so many seconds it tries to reach what is not there yet. `on_progress`: hears now and then up to which
    sequence everything is published, which one was the last at the start, and how many events were published by this.

    Raises:
        InvalidArgument: no topic may be called so, or there is no folder for the checkpoint.
        ConnectionLost: one of them cannot be reached at the start, within `wait_s`; in a group, as all that its tasks raise.
    """
    check_text("topic", topic)
    check_checkpoint_folder(checkpoint)
    outbox: Outbox | None = None
    async with trio.open_nursery() as nursery:
        asked = trio.Event()
        await nursery.start(stop_on_signals, asked)

        async def stop() -> None:
            await asked.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop)
        async with _reached(source, wait_s) as events, _reached(target, wait_s) as broker:
            file = None if checkpoint is None else CheckpointFile(checkpoint)
            outbox = Outbox(RemoteEvents(events), RemoteTopic(broker, topic), file)
            last = await last_sequence(events)
            if on_progress is not None:
                nursery.start_soon(_tell_regularly, outbox, last, on_progress)
            await outbox.run(last if until_caught_up else None)
        nursery.cancel_scope.cancel()
    return 0 if outbox is None else outbox.published


def _reached(address: str, wait_s: float) -> AbstractAsyncContextManager[NetworkStore]:
    def tell(error: EventStoreError) -> None:
        structlog.get_logger("eventstore.relay").warning("waiting for a server", error=error.message, wait_s=wait_s)

    return reached(address, name="eventstore publish", wait_s=wait_s, on_waiting=tell)


async def _tell_regularly(outbox: Outbox, last: int, on_progress: Callable[[int, int, int], None]) -> None:
    """Also at the end, so that what is told last is all there was."""
    try:
        while True:
            on_progress(outbox.place, last, outbox.published)
            await trio.sleep(_PROGRESS_S)
    finally:
        on_progress(outbox.place, last, outbox.published)


class RemoteEvents:
    """The source: a client of a server elsewhere."""

    def __init__(self, store: NetworkStore) -> None:
        self._store = store
        self.store = _uuid(store)

    async def events(self, after: int) -> list[Event]:
        while True:
            found = [event async for event in self._store.read_all(after, limit=BATCH_EVENTS_MAX)]
            if found:
                return found
            async with self._store.subscribe(after) as stream:
                async for item in stream:
                    if isinstance(item, Event):
                        break

    async def origin(self, sequence: int) -> Origin | None:
        async for event in self._store.read_all(sequence - 1, limit=1):
            return origin_of_event(event) if event.sequence == sequence else None
        return None


class RemoteTopic:
    """The target: a client of a server elsewhere. What tells two topics of one name apart: queues do not become shorter."""

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
        last, ends = self._last, dict(self._ends)  # as they are now: others go on while this asks
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
                    raise again(outcome)
                places.append((outcome.queue, outcome.queue_offset, parse_message_id(outcome.message_id)[1]))
                self._last = outcome.queue, outcome.queue_offset, outcome.message_id
        for queue, offset, _ in places:
            self._ends[queue] = offset + 1
        return places

    def is_durable(self, position: int) -> bool:
        """A server does not say. A checkpoint counts only as long as its message is there, or was deleted by retention."""
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
