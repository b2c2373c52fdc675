"""Looks, on each new connection, whether the broker still has what a walk over a topic has shown, which else ends.

A broker that was restored from an older copy, or lost its unsynced end, gives the same offsets to other messages. A walk that
went on where it was would skip those unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventstore.errors import Diverged, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.client.blocking.broker import BlockingBroker
    from eventstore.protocol.broker_info import PulledQueue
    from eventstore.records.message import Message


class _Last(NamedTuple):
    """As much of a message as it takes to know it again. `time`: when the broker accepted it."""

    offset: int
    message_id: str
    time: int


class SameTopicLog:
    """What was shown of the queues of a topic, held against the log at the other end of the connection."""

    def __init__(self, topic: str, shard: int | None) -> None:
        self._topic = topic
        self._on = "" if shard is None else f" on shard {shard}"
        self._begun: dict[int, int] = {}
        self._last: dict[int, _Last] = {}
        self._looked_on = 0

    def begin(self, broker: BlockingBroker, offsets: dict[int, int]) -> None:
        """Takes the first offset of each queue, which this connection has given; of one that is known, it does not count."""
        if not self._begun:
            self._looked_on = broker.connections
        self._begun = {**offsets, **self._begun}

    def add(self, messages: Iterable[Message]) -> None:
        """Takes what is shown next, in order."""
        for each in messages:
            self._last[each.queue] = _Last(each.queue_offset, each.message_id, each.timestamp)

    def is_sure(self, broker: BlockingBroker) -> bool:
        """Whether the broker at the other end of the present connection has the log that was shown."""
        return broker.connections == self._looked_on

    def look(self, broker: BlockingBroker) -> dict[int, int]:
        """Returns where each queue continues: after its last message. What a filter left out after it may be another one now.

        Raises:
            Diverged: the broker does not have a message that was shown.
        """
        while not self.is_sure(broker):
            on = broker.connections
            for queue in list(self._last):
                self._look_at(broker, queue)
            if broker.connections == on:
                self._looked_on = on
        return self._begun | {queue: last.offset + 1 for queue, last in self._last.items()}

    def _look_at(self, broker: BlockingBroker, queue: int) -> None:
        last = self._last[queue]
        try:
            found = broker.message_at(self._topic, queue, last.offset)
        except UnknownQueue:  # removed meanwhile; another of its number begins at its own first message
            del self._begun[queue], self._last[queue]
            return
        if found is not None and _Last(found.queue_offset, found.message_id, found.timestamp) == last:
            return
        if found is None and last.offset < self._begin_of(broker, queue):  # deleted by retention
            return
        raise self._diverged(
            f"message {last.offset} of {self._named(queue)}, which was shown, is not there any more", last.offset
        )

    def _begin_of(self, broker: BlockingBroker, queue: int) -> int:
        return next((each.begin for each in broker.queues(self._topic) if each.queue == queue), 0)

    def check(self, queues: Iterable[PulledQueue]) -> None:
        """Raises Diverged: a queue ends before the offset at which it was read, so what was there is lost."""
        for each in queues:
            if each.clamped is not None and each.clamped > each.end:
                where = f"{self._named(each.queue)} ends at offset {each.end}, before offset {each.clamped}, which was reached"
                raise self._diverged(where, each.clamped)

    def _named(self, queue: int) -> str:
        return f"queue {queue} of {self._topic}{self._on}"

    def _diverged(self, what: str, offset: int) -> Diverged:
        return Diverged(
            f"{what}: the broker was restored from an older copy, lost messages that were not durable yet, or the topic was "
            f"deleted and created again; `eventstore message tail {self._topic} --from-start` shows what there is",
            what=self._topic,
            sequence=offset,
        )
