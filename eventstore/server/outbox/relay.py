"""Publishes the events of one server to a topic of another, or of the same one: an outbox in a separate process.

Of a cluster, each shard has an outbox of its own, to its own queues of a topic of the same cluster, or to a server. So the
guarantees are those of one store, for each shard; an aggregate has all its events on one. When there are new shards, the
outboxes are made again. A topic that shows nothing of a new shard yet shows how far the one was whose events it begins with, by
which these were published; so new shards publish them before that one continues.

It keeps nothing that must not be lost: the place to resume at is read from the topic. If the connection breaks, a batch is not
simply sent again; the topic is read first. Before each batch it checks that the topic is still the same one, so that a broker
that lost the end of its log meanwhile (durability `async`) gets that again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.wait_for_server import wait_for_server
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import check_text
from eventstore.following.log import uuid_and_last_sequence
from eventstore.following.parts import Part, Parts, parts_of
from eventstore.server.bootstrap import check_checkpoint_folder, checkpoint_of_shard, stop_on_signals
from eventstore.server.logs import get_logger
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.inherited_events import publish_inherited, take_over
from eventstore.server.outbox.outbox import Outbox
from eventstore.server.outbox.remote_ends import RemoteEvents, RemoteTopic

_PROGRESS_S: Final = 0.2
_TELL_S: Final = 5.0


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
    on_signal: Callable[[int], object] = lambda number: None,
) -> int:
    """Publishes until a signal, or until all events present at the start are published. Returns how many were published.

    `source`, `target`: addresses. `checkpoint`: a file with the place to resume at if retention has deleted the whole topic; of
    several shards, each has its own.
    `past_lost`: continues after events that the topic has and the store has not. `wait_s`: how long to wait for a server that
    is not up yet. `on_progress` is called regularly with the sequence up to which all events are published, the last sequence
    at the start (both are sums over several shards), and the number of events published by this call. `on_signal` is called
    with the signal that ends it.

    Raises:
        InvalidArgument: the name is not valid for a topic, the checkpoint's folder does not exist, or the topic is one of
            several shards of another cluster.
        Diverged: the topic or the checkpoint ends with events that the store does not have; in an exception group.
        ConnectionLost: a server cannot be reached within `wait_s` at the start; in an exception group.
    """
    check_text("topic", topic)
    check_checkpoint_folder(checkpoint)
    published = 0
    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        await nursery.start(partial(stop_on_signals, stopping, heard=on_signal))

        async def stop() -> None:
            await stopping.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop)
        async with _connect(source, wait_s) as events, _connect(target, wait_s) as broker, parts_of(events) as parts:
            lines = _Lines(parts, partial(_line, parts, topic, checkpoint, past_lost), until_caught_up=until_caught_up)
            if on_progress is not None:
                nursery.start_soon(_report_regularly, lines, on_progress)
            telling = trio.CancelScope()
            nursery.start_soon(_tell_regularly, lines, topic, telling)
            try:
                await parts.run(partial(lines.publish, broker))
                telling.cancel()
                await _end(events, topic)  # not reached by a signal: it is missed until it is back
            finally:
                published = lines.published
        nursery.cancel_scope.cancel()
    return published


class _Pair(NamedTuple):
    """A part of what is published, and the broker that gets its events."""

    part: Part[NetworkStore]
    broker: NetworkStore


class _Line(NamedTuple):
    """An outbox, its store, and the last sequence of that at the start."""

    outbox: Outbox
    store: NetworkStore
    last: int


class _Lines:
    """The outboxes of all parts that there are now. `published`: also by those that have ended since."""

    def __init__(self, parts: Parts[NetworkStore], line: Callable[[_Pair], Awaitable[_Line]], *, until_caught_up: bool) -> None:
        self._parts, self._line, self._until_caught_up = parts, line, until_caught_up
        self._before = 0
        self.by_part: dict[int | None, _Line] = {}
        self.is_whole = False  # all parts that there are now have theirs

    @property
    def published(self) -> int:
        return self._before + sum(line.outbox.published for line in self.by_part.values())

    async def publish(self, broker: NetworkStore, parts: list[Part[NetworkStore]]) -> None:
        """Publishes until cancelled, or until all events present at the start are published."""
        self._before, self.by_part, self.is_whole = self.published, {}, False
        for pair in await _pairs(self._parts.store, parts, broker):
            self.by_part[pair.part.number] = await self._line(pair)
        outboxes = {number: line.outbox for number, line in self.by_part.items()}
        await publish_inherited(outboxes, parts, end_refused=True)
        self.is_whole = True
        async with trio.open_nursery() as running:
            for line in self.by_part.values():
                run = partial(line.outbox.run, line.last if self._until_caught_up else None, end_refused=True)
                running.start_soon(run)


async def _pairs(events: NetworkStore, parts: list[Part[NetworkStore]], broker: NetworkStore) -> list[_Pair]:
    """Returns what publishes where. Raises InvalidArgument: the events of one store would go to several shards."""
    is_own = False
    if broker._router is not None:
        is_own = events._router is not None and (await events.cluster_map()).cluster == (await broker.cluster_map()).cluster
    if not is_own and broker.shards:
        raise InvalidArgument(
            f"the topic would be one of {len(broker.shards)} shards, and a store publishes to one broker, in order; name the "
            "address of a shard (`eventstore cluster status` shows them), or publish a cluster's events to itself",
            field="to",
        )
    return [_Pair(part, part.store if is_own else broker) for part in parts]


async def _line(parts: Parts[NetworkStore], topic: str, checkpoint: Path | None, past_lost: bool, pair: _Pair) -> _Line:
    part, broker = pair
    uuid, last = await uuid_and_last_sequence(part.store)
    own = None if checkpoint is None else checkpoint_of_shard(checkpoint, part.number)
    if checkpoint is not None and own is not None:
        await trio.to_thread.run_sync(take_over, checkpoint, own)
    of = "" if part.number is None else f"events of shard {part.number}"
    source = RemoteEvents(part.store, uuid, partial(parts.others, part))
    file = None if own is None else CheckpointFile(own)
    return _Line(Outbox(source, RemoteTopic(broker, topic), file, past_lost=past_lost, of=of), part.store, last)


def _connect(address: str, wait_s: float) -> AbstractAsyncContextManager[NetworkStore]:
    def on_waiting(error: EventStoreError) -> None:
        get_logger("eventstore.relay").warning("waiting for a server", error=error.message, wait_s=wait_s)

    return wait_for_server(address, name="eventstore publish", wait_s=wait_s, on_waiting=on_waiting)


def _listed_as(topic: str) -> str:
    return f"publish {topic}"


async def _tell_regularly(running: _Lines, topic: str, scope: trio.CancelScope) -> None:
    """Has each store list how far its events are published, as a projector does, until cancelled."""
    with scope:
        while True:
            for line in list(running.by_part.values()) if running.is_whole else ():
                with suppress(EventStoreError):  # it is away, older, or this identity may not: only a figure is missing
                    oldest = [event.timestamp async for event in line.store.read_all(line.outbox.place, limit=1)]
                    await line.store.note_projection(_listed_as(topic), line.outbox.place, min(oldest, default=None), 0)
            await trio.sleep(_TELL_S if running.is_whole else _PROGRESS_S)


async def _end(store: NetworkStore, topic: str) -> None:
    """Says that the publishing was to end here."""
    with suppress(EventStoreError):
        await store.end_projection(_listed_as(topic))


async def _report_regularly(running: _Lines, on_progress: Callable[[int, int, int], None]) -> None:
    """Reports progress regularly, and once more at the end. What is new on one shard does not count for another."""

    def report() -> None:
        if not running.is_whole:  # what there is so far could be caught up, and the rest not
            return
        lines = running.by_part.values()
        behind = any(line.outbox.place < line.last for line in lines)
        place = sum(min(line.outbox.place, line.last) if behind else line.outbox.place for line in lines)
        on_progress(place, sum(line.last for line in lines), running.published)

    try:
        while True:
            report()
            await trio.sleep(_PROGRESS_S)
    finally:
        report()
