"""The two ends of a relay: clients of other servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final
from uuid import UUID

import trio

from eventstore.client.aio.routing.merged_subscription import MergedSubscription
from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.streams import NetworkSubscriptionStream
from eventstore.client.session.batches import ROWS_PER_TURN
from eventstore.client.session.message_rows import NewMessage
from eventstore.errors import EventStoreError, UnknownTopic, copy_error
from eventstore.following.log import event_at
from eventstore.model import CaughtUp, Event
from eventstore.records.message import Message, RawMessage, decode_properties, parse_message_id
from eventstore.server.outbox.outbox_ends import BATCH_EVENTS_MAX, MessagePosition
from eventstore.server.outbox.outbox_resume import TopicState

_FRAME_MESSAGES: Final = ROWS_PER_TURN  # sent as one frame; the next frame waits until these are in the log
_FRAME_BYTES: Final = 256 * 1024
_PULLED_MESSAGES: Final = 1_024


class RemoteEvents:
    """The source: a client of another server. One subscription, which yields durable events alone, lasts until a failure."""

    def __init__(
        self,
        store: NetworkStore,
        uuid: str | None = None,
        others: Callable[[int], Sequence[NetworkStore]] = lambda sequence: (),
    ) -> None:
        """`uuid`: of the store; None: of what answers at its address. `others`: see `Parts.others`."""
        self._store = store
        self._others = others
        self._stream: NetworkSubscriptionStream | MergedSubscription | None = None
        self._taken = 0  # the last event that was taken from the stream
        self.store = uuid or uuid_of(store)

    async def events(self, after: int) -> tuple[list[Event], int]:
        stream, self._stream = self._stream, None
        if stream is None or self._taken != after:
            if stream is not None:
                await stream.aclose()
            stream = self._store.subscribe(after)
        items: list[Event | CaughtUp] = [await anext(stream)]
        with trio.CancelScope(deadline=-inf):  # what has arrived comes without waiting
            while len(items) < BATCH_EVENTS_MAX:
                items.append(await anext(stream))
        self._stream, self._taken = stream, max(after, *(each.sequence for each in items))  # CaughtUp says what is left out
        return [each for each in items if isinstance(each, Event)], self._taken

    async def event(self, sequence: int) -> Event | None:
        if sequence <= 0:
            return None
        for store in (self._store, *self._others(sequence)):
            if (found := await event_at(store, sequence)) is not None:
                return found
        return None


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
        return TopicState(uuid_of(self._store), queues)

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

    async def send(self, messages: Sequence[RawMessage]) -> list[MessagePosition]:
        if not await self.is_same():
            raise UnknownTopic(f"topic {self.topic!r} was deleted and created again, or lost its end", topic=self.topic)
        places: list[MessagePosition] = []
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


def uuid_of(store: NetworkStore) -> str:
    """Returns the uuid of the store that answers at the address."""
    return str(UUID(bytes=store.store_uuid))
