"""Publishes the events of one server to a topic of another, or of the same one: an outbox in a separate process.

Of a cluster, each shard has an outbox of its own, to its own queues of a topic of the same cluster, or to a server. So the
guarantees are those of one store, for each shard; an aggregate has all its events on one.

It keeps nothing that must not be lost: the place to resume at is read from the topic. If the connection breaks, a batch is not
simply sent again; the topic is read first. Before each batch it checks that the topic is still the same one, so that a broker
that lost the end of its log meanwhile (durability `async`) gets that again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, NamedTuple
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
from eventstore.errors import EventStoreError, InvalidArgument, UnknownTopic, copy_error
from eventstore.fields import check_text
from eventstore.model import CaughtUp, Event
from eventstore.records.message import Message, RawMessage, decode_properties, parse_message_id
from eventstore.server.bootstrap import check_checkpoint_folder, checkpoint_of_shard, stop_on_signals
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

    `source`, `target`: addresses. `checkpoint`: a file with the place to resume at if retention has deleted the whole topic; of
    several shards, each has its own.
    `past_lost`: continues after events that the topic has and the store has not. `wait_s`: how long to wait for a server that
    is not up yet. `on_progress` is called regularly with the sequence up to which all events are published, the last sequence
    at the start (both are sums over several shards), and the number of events published by this call.

    Raises:
        InvalidArgument: the name is not valid for a topic, the checkpoint's folder does not exist, or the topic is one of
            several shards of another cluster.
        Diverged: the topic or the checkpoint ends with events that the store does not have; in an exception group.
        ConnectionLost: a server cannot be reached within `wait_s` at the start; in an exception group.
    """
    check_text("topic", topic)
    check_checkpoint_folder(checkpoint)
    lines: list[_Line] = []
    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        await nursery.start(stop_on_signals, stopping)

        async def stop() -> None:
            await stopping.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop)
        async with _connect(source, wait_s) as events, _connect(target, wait_s) as broker:
            for each in await _pairs(events, broker):
                lines.append(await _line(each, topic, checkpoint, past_lost=past_lost))
            if on_progress is not None:
                nursery.start_soon(_report_regularly, lines, on_progress)
            async with trio.open_nursery() as running:
                for line in lines:
                    run = partial(line.outbox.run, line.last if until_caught_up else None, end_refused=True)
                    running.start_soon(run)
        nursery.cancel_scope.cancel()
    return sum(line.outbox.published for line in lines)


class _Pair(NamedTuple):
    """A store, and the broker that gets its events. `shard`: None, unless there are several."""

    shard: int | None
    events: NetworkStore
    broker: NetworkStore


class _Line(NamedTuple):
    """An outbox, and the last sequence of its store at the start."""

    outbox: Outbox
    last: int


async def _pairs(events: NetworkStore, broker: NetworkStore) -> list[_Pair]:
    """Returns what publishes where. Raises InvalidArgument: the events of one store would go to several shards."""
    if not broker.shards:
        return [_Pair(shard, each, broker) for shard, each in events.shards.items()] or [_Pair(None, events, broker)]
    cluster = (await broker.cluster_map()).cluster
    if not events.shards or (await events.cluster_map()).cluster != cluster:
        raise InvalidArgument(
            f"the topic would be one of {len(broker.shards)} shards, and a store publishes to one broker, in order; name the "
            "address of a shard (`eventstore cluster status` shows them), or publish a cluster's events to itself",
            field="to",
        )  # fmt: skip
    return [_Pair(shard, each, broker.shards[shard]) for shard, each in events.shards.items()]


async def _line(pair: _Pair, topic: str, checkpoint: Path | None, *, past_lost: bool) -> _Line:
    uuid, last = await uuid_and_last_sequence(pair.events)
    own = checkpoint if checkpoint is None or pair.shard is None else checkpoint_of_shard(checkpoint, pair.shard)
    file = None if own is None else CheckpointFile(own)
    of = "" if pair.shard is None else f"events of shard {pair.shard}"
    outbox = Outbox(RemoteEvents(pair.events, uuid), RemoteTopic(pair.broker, topic), file, past_lost=past_lost, of=of)
    return _Line(outbox, last)


def _connect(address: str, wait_s: float) -> AbstractAsyncContextManager[NetworkStore]:
    def on_waiting(error: EventStoreError) -> None:
        structlog.get_logger("eventstore.relay").warning("waiting for a server", error=error.message, wait_s=wait_s)

    return wait_for_server(address, name="eventstore publish", wait_s=wait_s, on_waiting=on_waiting)


async def _report_regularly(lines: Sequence[_Line], on_progress: Callable[[int, int, int], None]) -> None:
    """Reports progress regularly, and once more at the end. What is new on one shard does not count for another."""

    def report() -> None:
        behind = any(line.outbox.place < line.last for line in lines)
        place = sum(min(line.outbox.place, line.last) if behind else line.outbox.place for line in lines)
        on_progress(place, sum(line.last for line in lines), sum(line.outbox.published for line in lines))

    try:
        while True:
            report()
            await trio.sleep(_PROGRESS_S)
    finally:
        report()


class RemoteEvents:
    """The source: a client of another server. One subscription, which yields durable events alone, lasts until a failure."""

    def __init__(self, store: NetworkStore, uuid: str | None = None) -> None:
        """`uuid`: of the store; None: of what answers at its address."""
        self._store = store
        self._stream: SubscriptionStream | MergedSubscription | None = None
        self._taken = 0  # the last event that was taken from the stream
        self.store = uuid or _uuid(store)

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
