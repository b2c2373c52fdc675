"""The embedded broker, on trio: what a server offers on the wire, in the same process and in batches.

Messages are sent as `RawMessage` tuples and read as whole records, the bytes on disk. Tasks send with `send_many`, a loop that
serves many connections with `submit`; `pulls` reads. The other operations: `administration` (topics and queues), `coordinator`
(groups and offsets), `failed_messages` (retries and dead letters), `lookups`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import trio

from eventstore.broker.administration import Administration
from eventstore.broker.failed_messages import FailedMessages
from eventstore.broker.group_coordinator import GroupCoordinator
from eventstore.broker.groups.failed_offsets import FailedOffsets
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.housekeeping import Housekeeping
from eventstore.broker.log.committer import MessageCommitter
from eventstore.broker.log.engine import WriteResult
from eventstore.broker.log.queue_bounds import QueueBounds
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.message_lookups import MessageLookups
from eventstore.broker.opening import BrokerIdentity, OpenBroker, open_broker_folder
from eventstore.broker.pulls import Pulls
from eventstore.broker.statistics import Statistics
from eventstore.broker.topics import Topic
from eventstore.chunks.files import Files
from eventstore.chunks.writing.group_commit import DeliverOutcomes, Replication
from eventstore.errors import Closed, InvalidArgument
from eventstore.records.message import RawMessage
from eventstore.records.topic_names import RETRY, check_name, is_own
from eventstore.settings.broker import BrokerSettings

_MESSAGES_PER_TURN: Final = 512
_Submit: TypeAlias = Callable[[Sequence[RawMessage], DeliverOutcomes[SendOutcome]], None]


class Broker:
    """An open broker, opened by `open_broker`. Safe to use from any task of the same trio run."""

    def __init__(self, opened: OpenBroker, replication: Replication | None = None, shard: int | None = None) -> None:
        self.opened = opened
        self.engine = engine = opened.engine
        self.topics = topics = opened.topics
        self.settings = settings = opened.settings
        self.bounds = QueueBounds(engine, topics)
        self.groups = Groups(
            opened.offsets_document,
            topics,
            self.bounds,
            member_timeout_s=settings.member_timeout_s,
            retry_delays_s=settings.retry_delays_s,
            shard=shard,
        )
        self.clamped = self.groups.offsets.clamp()
        self.statistics = Statistics(engine, topics)
        self.committer = MessageCommitter(
            engine,
            self._on_written,
            waiting_bytes_max=settings.waiting_bytes_max,
            sync=settings.durability == "sync",
            flush_interval_s=settings.flush_interval_s,
            replication=replication,
        )
        self.housekeeping = Housekeeping(
            opened, self.groups, self.statistics, opened.offsets_document, self.committer.sync_written
        )
        self.administration = Administration(engine, topics, self.groups, settings)
        self.pulls = Pulls(engine, topics, self.statistics, self._delays_s)
        self.lookups = MessageLookups(engine, topics, opened.node)
        failed = FailedOffsets()
        self.coordinator = GroupCoordinator(
            self.groups, topics, self.bounds, self.lookups, self.administration, self.housekeeping, failed
        )
        self.failed_messages = FailedMessages(
            self.groups, topics, self.lookups, self.administration, failed, self._send_own, self.housekeeping.save_offsets
        )
        self._closed = False

    def _delays_s(self, topic: str) -> Sequence[float]:
        return self.groups.policy(topic.removeprefix(RETRY)).delays_s

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the broker is closed")

    def check_sendable(self, topic: str) -> Topic:
        """Returns the topic, if clients may send to it. Raises UnknownTopic, InvalidArgument."""
        self._check_open()
        if isinstance(topic, str) and is_own(topic):
            raise InvalidArgument(f"{topic!r} is the broker's own", field="topic", value=topic)
        return self.topics.get(topic)

    def submit(self, topic: str, messages: Sequence[RawMessage], deliver: DeliverOutcomes[SendOutcome], source: object) -> None:
        """Sends messages; calls `deliver` with their outcomes once they are durable (`async`: written).

        For a loop that serves many connections: call `committer.wait_for_room` or check `committer.full` before it, and
        `committer.kick` after the last call of a round.

        Raises:
            UnknownTopic, InvalidArgument, Poisoned
        """
        self.committer.submit(self.check_sendable(topic), messages, deliver, source)

    async def send_many(self, topic: str, messages: Sequence[RawMessage]) -> list[SendOutcome]:
        """Sends messages, in order. Returns (queue, queue offset, position) or an error for each.

        Raises:
            UnknownTopic, InvalidArgument, Poisoned
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.settings.create_topics and isinstance(topic, str) and topic not in self.topics.by_name:
            await self.administration.ensure_topic(check_name("topic", topic), self.settings.default_queues)
        source = trio.lowlevel.current_task()
        return await self._send(messages, lambda part, deliver: self.submit(topic, part, deliver, source))

    async def _send_own(self, topic: str, messages: Sequence[RawMessage]) -> list[SendOutcome]:
        found = self.topics.get(topic)
        return await self._send(messages, lambda part, deliver: self.committer.submit(found, part, deliver, self, own=True))

    async def _send(self, messages: Sequence[RawMessage], submit: _Submit) -> list[SendOutcome]:
        submissions: list[_Submission] = []
        for start in range(0, len(messages), _MESSAGES_PER_TURN):
            if submissions:
                await trio.lowlevel.checkpoint()
            await self.committer.wait_for_room()
            submission = _Submission()
            submit(messages[start : start + _MESSAGES_PER_TURN], submission.deliver)
            self.committer.kick()
            submissions.append(submission)
        outcomes: list[SendOutcome] = []
        for submission in submissions:
            await submission.wait()
            outcomes += submission.outcomes
        return outcomes

    def _on_written(self, written: WriteResult) -> None:
        self.pulls.wake(written.queues)
        if written.completed:
            self.housekeeping.index_soon()

    async def keep_house(self) -> None:
        """Indexes, deletes and saves, until closed. A replica begins once it is known what of its log stays."""
        await self.committer.settled.wait()
        await self.housekeeping.run()

    async def close(self) -> None:
        """Writes the messages that wait, saves the offsets, and stops."""
        self._closed = True
        self.pulls.close()
        with trio.CancelScope(shield=True):
            await self.committer.drain()
            self.housekeeping.stop()
            self.committer.stop()


class _Submission:
    """Submitted messages, and their outcomes once they are known."""

    def __init__(self) -> None:
        self.outcomes: list[SendOutcome] = []
        self._done = trio.Event()

    def deliver(self, outcomes: list[SendOutcome]) -> None:
        self.outcomes = outcomes
        self._done.set()

    async def wait(self) -> None:
        await self._done.wait()


@asynccontextmanager
async def open_broker(
    path: str | Path,
    settings: BrokerSettings | None = None,
    *,
    files: Files | None = None,
    clock: Callable[[], float] = time.time,
    identity: BrokerIdentity | None = None,
    epoch: int | None = None,
    replication: Replication | None = None,
    shard: int | None = None,
) -> AsyncIterator[Broker]:
    """Opens or creates the broker in a folder, for as long as the block runs. `identity`, `epoch`, `replication`: given for a
    replica. `shard`: the number of the broker's shard, in a cluster of several.

    Raises:
        FolderRefused, Corrupt
    """
    settings = settings or BrokerSettings()
    opened = await trio.to_thread.run_sync(
        lambda: open_broker_folder(Path(path), settings, files=files, clock=clock, identity=identity, epoch=epoch)
    )
    try:
        async with trio.open_nursery() as nursery:
            broker = Broker(opened, replication, shard)
            await nursery.start(broker.committer.run)
            nursery.start_soon(broker.keep_house)
            nursery.start_soon(broker.pulls.run)
            try:
                yield broker
            finally:
                await broker.close()
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(opened.close)
