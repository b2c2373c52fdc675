"""The broker as part of a server: its routes, its counters, and how it stops.

It shares a process, the gate and a disk with the event store, but nothing else: its log has its own committer and threads.
A poisoned broker refuses messages and reports it: to senders, as a counter, and as the `attention` of `/health`. The event
store continues, and consumers continue to read. Only a restart can judge what is on disk; an operator decides when.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.broker.groups.in_hand import InHand
from eventstore.broker.statistics import Rates
from eventstore.metrics import Metric, MetricSource, counter, gauge, text
from eventstore.protocol.broker_requests import Pull, SendMessages
from eventstore.protocol.group_requests import SetRetries
from eventstore.protocol.request_declaration import Request
from eventstore.server.broker.broker_metrics import GroupCollector, QueueCollector
from eventstore.server.broker.group_handlers import GroupHandlers
from eventstore.server.broker.handlers import routes_of
from eventstore.server.broker.lookup_handlers import LookupHandlers
from eventstore.server.broker.message_batcher import MessageBatcher
from eventstore.server.broker.pull_handlers import MessagePulls
from eventstore.server.broker.topic_handlers import TopicHandlers
from eventstore.server.feature import Feature, Route
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate

_LOOKUPS_AT_ONCE = 4
IN_HAND_S_MAX: Final = 900.0
"""From then on `/health` is degraded: no handler should take so long for a message."""


class BrokerService:
    """An open broker, as the clients of one gate see it."""

    def __init__(
        self,
        gate: Gate,
        broker: Broker,
        nursery: trio.Nursery,
        may_answer: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        shard: int | None = None,
    ) -> None:
        """`may_answer`: see `TopicHandlers`. `shard`: whose broker it is, in a cluster."""
        self.broker = broker
        self._shard = shard
        self.messages = MessageBatcher(gate, broker, nursery)
        self.pulls = MessagePulls(gate, broker, nursery)
        changes, lookups = DeferredReplies(gate, nursery), DeferredReplies(gate, nursery, at_once=_LOOKUPS_AT_ONCE)
        routes: dict[type[Request], Route] = {
            SendMessages: self.messages.send,
            Pull: self.pulls.begin,
            **routes_of(GroupHandlers(broker), gate, changes),
            **routes_of(TopicHandlers(broker, may_answer), gate, changes),
            **routes_of(LookupHandlers(broker), gate, lookups),
        }
        self.feature = Feature(
            routes=routes,
            metrics=[MetricSource(BROKER_METRICS, lambda: _Counted(self, broker.statistics.rates()))],
            collectors=[QueueCollector(broker), GroupCollector(broker)],
            attention=lambda: self.attention,
            stop=self.stop,
            drain=self._drain,
        )

    def has_topic(self, name: str) -> bool:
        return name in self.broker.topics.by_name

    def changes(self, request: SetRetries) -> bool:
        """Whether a group has another policy of its own than the request gives it, or none."""
        policy = self.broker.groups.offsets.document.policies.get(request.group)
        if policy is None:
            return True
        delays_s = tuple(each / 1000 for each in request.delays_ms)
        return (policy.delays_s, policy.attempts, policy.dead_letters) != (delays_s, request.attempts, request.dead_letters)

    def stop(self) -> None:
        """Refuses new messages, and ends the pulls that wait."""
        self.messages.stopping = True
        self.pulls.stop()

    async def _drain(self, _: float) -> None:
        """Waits until all messages sent are stored and answered, and no pull waits."""
        await self.broker.committer.drain()
        await self.pulls.drain()

    @property
    def attention(self) -> str | None:
        """What an operator must do, if anything."""
        failed = self.broker.engine.failed
        if failed is not None:
            return f"the broker takes no more messages: {failed.message}; events are served. Look at the disk, then restart"
        refused = self.broker.committer.refused.why(self.broker.committer.batches)
        if refused is not None:
            return f"messages are refused: {refused}"
        return self.broker.housekeeping.failure or _hangs(self.broker, self._shard)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A broker service, with the rates of the last second computed once."""

    service: BrokerService
    rates: Rates

    @property
    def broker(self) -> Broker:
        return self.service.broker


def _oldest(broker: Broker) -> InHand | None:
    return max(broker.housekeeping.in_hand.oldest.values(), key=lambda each: each.seconds, default=None)


def _hangs(broker: Broker, shard: int | None) -> str | None:
    oldest = _oldest(broker)
    if oldest is None or oldest.seconds < IN_HAND_S_MAX:
        return None
    since = datetime.fromtimestamp(time.time() - oldest.seconds, UTC)
    waiting = (
        "all queues of this consumer wait for it, on all shards, since consumers have died of a message"
        if oldest.alone
        else "its queue waits for it"
    )
    skip = f"eventstore group reset {oldest.group} {oldest.topic} --queue {oldest.queue} --to-offset {oldest.offset + 1}"
    if shard is not None:  # not only if there are others now: it may be split
        skip += f" --shard {shard}"
    return (
        f"{_named(oldest)} for {oldest.seconds:.0f} s, since {since:%Y-%m-%d %H:%M:%S} UTC, and {waiting}; look at its "
        f"handler's log, then restart that consumer; if it hangs again, skip the message: {skip}"
    )


def _named(held: InHand) -> str:
    return f"member {held.member} of group {held.group} has message {held.offset} of queue {held.queue} of {held.topic} in hand"


def _oldest_named(counted: _Counted) -> str | None:
    oldest = _oldest(counted.broker)
    return None if oldest is None else _named(oldest)


def _oldest_s(counted: _Counted) -> int:
    oldest = _oldest(counted.broker)
    return 0 if oldest is None else round(oldest.seconds)


def _held_back(counted: _Counted) -> str | None:
    held = counted.broker.housekeeping.held_back
    return None if held is None else f"{held.group} in queue {held.queue} of {held.topic}"


BROKER_METRICS: Final[tuple[Metric[_Counted], ...]] = (
    gauge(
        "broker_topics",
        "topics, including those the broker keeps for retries and dead letters",
        lambda counted: len(counted.broker.topics.by_name),
    ),
    gauge("broker_queues", "queues of all topics", lambda counted: len(counted.broker.engine.queues)),
    gauge("broker_groups", "consumer groups", lambda counted: len(counted.broker.groups.by_name)),
    gauge(
        "broker_members",
        "consumers that are alive",
        lambda counted: sum(len(group.members) for group in list(counted.broker.groups.by_name.values())),
        "it is lower than the number of consumers you run",
    ),
    counter(
        "broker_messages",
        "messages stored since the broker was created",
        lambda counted: counted.broker.engine.visible_number,
        "its rate is the throughput",
    ),
    counter(
        "broker_messages_refused",
        "messages refused for their content",
        lambda counted: counted.broker.engine.sender.refused,
        "a sender is broken",
    ),
    gauge("broker_chunks", "message chunks", lambda counted: len(counted.broker.engine.files.headers)),
    gauge(
        "broker_chunks_mapped",
        "of these, mapped into memory for consumers that lag",
        lambda counted: len(counted.broker.engine.files.mapped),
    ),
    gauge(
        "broker_warmed_bytes",
        "bytes of the last message chunks that were read into the page cache after the start",
        lambda counted: counted.broker.housekeeping.warmed_bytes,
    ),
    gauge(
        "broker_oldest_in_hand_seconds",
        "how long a consumer has had the same message in hand, the longest of all groups",
        _oldest_s,
        "it is longer than any handler should take: one hangs, and its queue waits",
    ),
    text("broker_oldest_in_hand", "the member, group, queue and offset of that message", _oldest_named),
    text("broker_held_back", "the group and queue that keep retention from deleting", _held_back),
    counter(
        "broker_batches",
        "write and sync operations",
        lambda counted: counted.broker.committer.batches,
        "`broker_messages / broker_batches`: how well messages share syncs",
    ),
    counter(
        "broker_refused_batches",
        "write and sync operations that failed: what they were to write was refused",
        lambda counted: counted.broker.committer.refused.count,
        "it grows: the disk is full; `attention` has its folder",
    ),
    counter(
        "broker_batches_in_place",
        "of the batches, for a lone sender, without a thread",
        lambda counted: counted.broker.committer.batches_in_place,
    ),
    counter(
        "broker_write_microseconds",
        "time spent in write and sync",
        lambda counted: round(counted.broker.committer.write_seconds * 1_000_000),
    ),
    gauge(
        "broker_waiting_bytes",
        "bytes sent and not written yet",
        lambda counted: counted.service.messages.waiting_bytes,
        "it is near `broker_waiting_bytes_max`: the disk is the bottleneck",
    ),
    gauge(
        "broker_senders_held",
        "connections that are not read because of that",
        lambda counted: counted.service.messages.held,
    ),
    gauge("broker_pulls", "pulls that are not answered yet", lambda counted: counted.service.pulls.count),
    gauge("broker_messages_written_a_second", "messages sent in the last second", lambda counted: round(counted.rates.written)),
    gauge("broker_bytes_written_a_second", "bytes sent in the last second", lambda counted: round(counted.rates.written_bytes)),
    gauge("broker_messages_read_a_second", "messages pulled in the last second", lambda counted: round(counted.rates.read)),
    gauge("broker_bytes_read_a_second", "bytes pulled in the last second", lambda counted: round(counted.rates.read_bytes)),
    gauge(
        "broker_torn_bytes_at_start",
        "bytes of a torn batch of messages cut off at the last start; a copy is in `broker/cut`",
        lambda counted: counted.broker.opened.report.torn_bytes,
        "over 0: the previous process died while writing",
    ),
    gauge(
        "broker_poisoned",
        "1: the broker takes no more messages; events are served",
        lambda counted: counted.broker.engine.failed is not None,
        "at once: see [what to do](OPERATIONS.md#when-something-goes-wrong)",
    ),
)
