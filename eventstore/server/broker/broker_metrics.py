"""Metrics of each queue and each group for Prometheus.

There may be a hundred thousand queues, and each would be five series for good. Above a bound they are added up per topic, and
above the same number of topics the rest of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from eventstore.broker.broker import Broker
from eventstore.broker.statistics import QueueStats
from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric
from eventstore.records.topic_names import dead_topic

SERIES_MAX: Final = 1_000
_ALL: Final = "all"
_OTHERS: Final = ":others"  # not a valid name of a topic
_QUEUE: Final = ("topic", "queue")
QUEUE_METRICS: Final = (  # in the order of `queue_rows`
    LabelledMetric("queue_messages_written", "counter", "messages sent to a queue", _QUEUE),
    LabelledMetric("queue_bytes_written", "counter", "bytes sent to a queue since the start", _QUEUE),
    LabelledMetric("queue_messages_read", "counter", "messages pulled from a queue by all groups since the start", _QUEUE),
    LabelledMetric("queue_bytes_read", "counter", "bytes pulled from a queue by all groups since the start", _QUEUE),
    LabelledMetric("queue_messages_kept", "gauge", "messages a queue holds", _QUEUE),
    LabelledMetric(
        "queue_offset", "gauge", "the offset after a queue's last accepted message; of several queues the sum", _QUEUE
    ),
    LabelledMetric("queue_durable_offset", "gauge", "the same of the last message that survives a power failure", _QUEUE),
)
GROUP_BACKLOG: Final = LabelledMetric("group_backlog", "gauge", "messages a group has still to consume", ("group", "topic"))
GROUP_UNATTENDED: Final = LabelledMetric(
    "group_unattended", "gauge", "messages that wait for a group that has no members", ("group", "topic")
)
GROUP_DEAD_LETTERS: Final = LabelledMetric(
    "group_dead_letters", "gauge", "dead letters that a group has, without those that were replayed", ("group",)
)
GROUP_DEATHS: Final = LabelledMetric(
    "group_messages_dead", "counter", "messages that became dead letters of a group", ("group",)
)
GROUP_IN_HAND: Final = LabelledMetric(
    "group_oldest_in_hand_seconds", "gauge", "how long a member of a group has had the same message in hand", ("group",)
)


GROUP_OFFSET: Final = LabelledMetric(
    "group_offset",
    "gauge",
    "the sum of a group's offsets in the queues of a topic: before them all is consumed",
    ("group", "topic"),
)


GROUP_METRICS: Final = (GROUP_OFFSET, GROUP_BACKLOG, GROUP_UNATTENDED, GROUP_IN_HAND, GROUP_DEAD_LETTERS, GROUP_DEATHS)


class QueueCollector(LabelledCollector):
    """Reads the counters of queues when they are scraped, on any thread."""

    declared = QUEUE_METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[LabelledFigures]:
        rows = queue_rows(self._broker.statistics.queues())
        for place, metric in enumerate(QUEUE_METRICS):
            family = LabelledFigures(metric)
            for (topic, queue), values in rows.items():
                family.add((topic, queue), values[place])
            yield family


class GroupCollector(LabelledCollector):
    """Reads how far consumer groups are, on any thread."""

    declared = GROUP_METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[LabelledFigures]:
        backlog, consumed = LabelledFigures(GROUP_BACKLOG), LabelledFigures(GROUP_OFFSET)
        unattended = LabelledFigures(GROUP_UNATTENDED)
        queues = self._broker.statistics.queues()
        for (group, topic), (offsets, count) in sorted(self._progress(queues).items())[:SERIES_MAX]:
            consumed.add((group, topic), offsets)
            backlog.add((group, topic), count)
            found = self._broker.groups.by_name.get(group)
            unattended.add((group, topic), 0 if found is not None and found.members else count)
        yield consumed
        yield backlog
        yield unattended
        yield from self._dead_letters(queues)
        in_hand = LabelledFigures(GROUP_IN_HAND)
        for group, held in sorted(self._broker.housekeeping.in_hand.oldest.items())[:SERIES_MAX]:
            in_hand.add((group,), held.seconds)
        yield in_hand

    def _dead_letters(self, queues: Sequence[QueueStats]) -> Iterator[LabelledFigures]:
        left, died = LabelledFigures(GROUP_DEAD_LETTERS), LabelledFigures(GROUP_DEATHS)
        dead = {each.topic: each for each in queues if each.queue == 0}
        groups = sorted(self._broker.groups.by_name.copy(), key=lambda group: (dead_topic(group) not in dead, group))
        for group in groups[:SERIES_MAX]:
            topic, queue = self._broker.topics.by_name.get(dead_topic(group)), dead.get(dead_topic(group))
            if topic is None or queue is None:  # the first one, too, has to be seen as an increase
                left.add((group,), 0)
                died.add((group,), 0)
                continue
            replayed = self._broker.groups.offsets.replayed.ranges(group, topic.id)
            done = sum(max(0, min(end, queue.end) - max(first, queue.begin)) for first, end in replayed)
            left.add((group,), max(0, queue.end - queue.begin - done))
            died.add((group,), queue.end)
        yield left
        yield died

    def _progress(self, queues: Sequence[QueueStats]) -> dict[tuple[str, str], tuple[int, int]]:
        """Returns the sum of the offsets and the backlog, by group and topic."""
        ends = {(each.topic, each.queue): (each.begin, each.end) for each in queues}
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for group, topics in list(self._broker.groups.offsets.document.groups.items()):
            for topic, offsets in list(topics.items()):
                consumed = backlog = 0
                for queue, offset in list(offsets.items()):
                    begin, end = ends.get((topic, queue), (0, 0))
                    consumed += offset
                    backlog += max(0, end - max(offset, begin))
                found[group, topic] = consumed, backlog
        return found


def queue_rows(queues: Sequence[QueueStats]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Returns the totals and the number of messages kept, by topic and queue; at most `SERIES_MAX` rows and one."""
    if len(queues) <= SERIES_MAX:
        return _added(((each.topic, str(each.queue)), each) for each in queues)
    topics = sorted({each.topic for each in queues})
    if len(topics) <= SERIES_MAX:
        return _added(((each.topic, _ALL), each) for each in queues)
    shown = set(topics[:SERIES_MAX])
    return _added(((each.topic if each.topic in shown else _OTHERS, _ALL), each) for each in queues)


def _added(rows: Iterable[tuple[tuple[str, str], QueueStats]]) -> dict[tuple[str, str], tuple[int, ...]]:
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for labels, each in rows:
        values = (*each.totals, max(0, each.end - each.begin), each.accepted, each.durable)
        before = found.get(labels)
        found[labels] = values if before is None else tuple(map(sum, zip(before, values, strict=True)))
    return found
