"""The broker, in the process of its user, on trio: everything a server puts on the wire, in batches.

Messages go in as `RawMessage` tuples and come out as whole records, the bytes that lie on disk. The ways in are `send_many`,
for tasks, and `submit`, for a loop that serves many connections; the way out is `pulls`. The rest is in parts:
`administration` (topics and queues), `consumers` (groups and offsets), `failures` (retries and dead letters), `look_ups`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import trio

from eventstore.broker.administration import Administration
from eventstore.broker.committer import Committer
from eventstore.broker.consumers import Consumers
from eventstore.broker.engine import Written
from eventstore.broker.failed_offsets import FailedOffsets
from eventstore.broker.failures import Failures
from eventstore.broker.groups import Groups
from eventstore.broker.housekeeping import Housekeeping
from eventstore.broker.look_ups import LookUps
from eventstore.broker.message import RawMessage
from eventstore.broker.names import check_name, is_own
from eventstore.broker.opening import OpenBroker, open_broker_folder
from eventstore.broker.pulls import Pulls, queue_log
from eventstore.broker.sending import Outcome
from eventstore.broker.settings import BrokerSettings
from eventstore.broker.statistics import Statistics
from eventstore.broker.topics import Topic
from eventstore.chunks.files import Files
from eventstore.chunks.group_commit import Deliver
from eventstore.errors import Closed, InvalidArgument

_MESSAGES_PER_TURN: Final = 512
_Submit: TypeAlias = Callable[[Sequence[RawMessage], Deliver[Outcome]], None]


class Broker:
    """An open broker. Made by `open_broker`; safe to use from any task of the same trio run."""

    def __init__(self, opened: OpenBroker) -> None:
        self.opened = opened
        self.engine = engine = opened.engine
        self.topics = topics = opened.topics
        self.settings = settings = opened.settings
        self.groups = Groups(opened.progress, topics, self.bounds, member_timeout_s=settings.member_timeout_s)
        self.clamped = self.groups.offsets.clamp()
        self.statistics = Statistics(engine, topics)
        self.committer = Committer(
            engine, self._on_written, waiting_bytes_max=settings.waiting_bytes_max, sync=settings.durability == "sync",
            flush_interval_s=settings.flush_interval_s,
        )  # fmt: skip
        self.housekeeping = Housekeeping(opened, self.groups, self.statistics, opened.progress)
        self.administration = Administration(engine, topics, self.groups, settings)
        self.pulls = Pulls(engine, topics, self.statistics, settings)
        self.look_ups = LookUps(engine, topics, opened.node)
        failed = FailedOffsets()
        self.consumers = Consumers(
            self.groups, topics, self.bounds, self.look_ups, self.administration, self.housekeeping, failed
        )
        self.failures = Failures(
            self.groups, topics, self.look_ups, self.administration, failed, self._send_own, settings.retry_delays_s
        )
        self._closed = False

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """What a queue holds: [begin, end). Raises UnknownTopic, UnknownQueue."""
        log = queue_log(self.engine, self.topics, topic, queue)
        return log.first, log.visible_end(self.engine.visible_position)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the broker is closed")

    def check_sendable(self, topic: str) -> Topic:
        """The topic, if messages may be sent to it. Raises UnknownTopic, InvalidArgument."""
        self._check_open()
        if isinstance(topic, str) and is_own(topic):
            raise InvalidArgument(f"{topic!r} is the broker's own", field="topic", value=topic)
        return self.topics.get(topic)

    def submit(self, topic: str, messages: Sequence[RawMessage], deliver: Deliver[Outcome], source: object) -> None:
        """Sends messages; `deliver` is called with what became of each once that is durable (`async`: written).

        For a loop that serves many: call `committer.wait_for_room` or look at `committer.full` before, and
        `committer.kick` after the last of a round.

        Raises:
            UnknownTopic, InvalidArgument, Poisoned
        """
        self.committer.submit(self.check_sendable(topic), messages, deliver, source)

    async def send_many(self, topic: str, messages: Sequence[RawMessage]) -> list[Outcome]:
        """Sends messages, in order; what became of each: (queue, queue offset, position), or an error.

        Raises:
            UnknownTopic, InvalidArgument, Poisoned
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.settings.create_topics and isinstance(topic, str) and topic not in self.topics.by_name:
            await self.administration.ensure_topic(check_name("topic", topic), self.settings.default_queues)
        source = trio.lowlevel.current_task()
        return await self._send(messages, lambda part, deliver: self.submit(topic, part, deliver, source))

    async def _send_own(self, topic: str, messages: Sequence[RawMessage]) -> list[Outcome]:
        found = self.topics.get(topic)
        return await self._send(messages, lambda part, deliver: self.committer.submit(found, part, deliver, self, own=True))

    async def _send(self, messages: Sequence[RawMessage], submit: _Submit) -> list[Outcome]:
        submissions: list[_Submission] = []
        for start in range(0, len(messages), _MESSAGES_PER_TURN):
            if submissions:
                await trio.lowlevel.checkpoint()
            await self.committer.wait_for_room()
            submission = _Submission()
            submit(messages[start : start + _MESSAGES_PER_TURN], submission.deliver)
            self.committer.kick()
            submissions.append(submission)
        outcomes: list[Outcome] = []
        for submission in submissions:
            await submission.wait()
            outcomes += submission.outcomes
        return outcomes

    def _on_written(self, written: Written) -> None:
        self.pulls.wake(written.queues)
        if written.completed:
            self.housekeeping.index_soon()

    async def close(self) -> None:
        """Writes what is left, and lets go of everything."""
        self._closed = True
        self.pulls.close()
        with trio.CancelScope(shield=True):
            await self.committer.drain()
            self.housekeeping.stop()
            self.committer.stop()


class _Submission:
    """Messages on their way, and what became of them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._done = trio.Event()

    def deliver(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self._done.set()

    async def wait(self) -> None:
        await self._done.wait()


@asynccontextmanager
async def open_broker(
    path: str | Path, settings: BrokerSettings | None = None, *, files: Files | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Broker]:  # fmt: skip
    """Opens or creates the broker in a folder, for as long as the block runs.

    Raises:
        FolderRefused, Corrupt
    """
    settings = settings or BrokerSettings()
    opened = await trio.to_thread.run_sync(lambda: open_broker_folder(Path(path), settings, files=files, clock=clock))
    try:
        async with trio.open_nursery() as nursery:
            broker = Broker(opened)
            await nursery.start(broker.committer.run)
            nursery.start_soon(broker.housekeeping.run)
            try:
                yield broker
            finally:
                await broker.close()
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(opened.close)
