"""Figures of queues and groups for Prometheus.

There may be a hundred thousand queues, and each would be five series for ever: beyond a bound they are told topic by topic, and
beyond the same number of topics, the rest of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventstore.broker.broker import Broker
from eventstore.broker.statistics import QueueFigures

SERIES_MAX: Final = 1_000
_ALL: Final = "all"
_OTHERS: Final = ":others"  # no topic is called so
_COUNTERS: Final = (
    ("eventstore_queue_messages_written", "messages sent to a queue"),
    ("eventstore_queue_bytes_written", "bytes sent to a queue since the start"),
    ("eventstore_queue_messages_read", "messages pulled from a queue since the start"),
    ("eventstore_queue_bytes_read", "bytes pulled from a queue since the start"),
)


class BrokerCollector(Collector):
    """Reads the broker's own counters at the moment they are asked for, on whatever thread that is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        queues = self._broker.statistics.queues()
        rows = queue_rows(queues)
        for place, (name, what) in enumerate(_COUNTERS):
            counter = CounterMetricFamily(name, what, labels=("topic", "queue"))
            for (topic, queue), values in rows.items():
                counter.add_metric((topic, queue), values[place])
            yield counter
        kept = GaugeMetricFamily("eventstore_queue_messages_kept", "messages a queue holds", labels=("topic", "queue"))
        for (topic, queue), values in rows.items():
            kept.add_metric((topic, queue), values[-1])
        yield kept
        backlog = GaugeMetricFamily("eventstore_group_backlog", "messages a group has to consume", labels=("group", "topic"))
        for (group, topic), count in sorted(self._backlogs(queues).items())[:SERIES_MAX]:
            backlog.add_metric((group, topic), count)
        yield backlog

    def _backlogs(self, queues: Sequence[QueueFigures]) -> dict[tuple[str, str], int]:
        ends = {(each.topic, each.queue): (each.begin, each.end) for each in queues}
        found: dict[tuple[str, str], int] = {}
        for group, topics in list(self._broker.groups.offsets.progress.groups.items()):
            for topic, offsets in list(topics.items()):
                behind = 0
                for queue, offset in list(offsets.items()):
                    begin, end = ends.get((topic, queue), (0, 0))
                    behind += max(0, end - max(offset, begin))
                found[group, topic] = behind
        return found


def queue_rows(queues: Sequence[QueueFigures]) -> dict[tuple[str, str], tuple[int, ...]]:
    """By topic and queue: the totals, and how many messages are kept; at most so many rows as the bound says, and one."""
    if len(queues) <= SERIES_MAX:
        return _added(((each.topic, str(each.queue)), each) for each in queues)
    topics = sorted({each.topic for each in queues})
    if len(topics) <= SERIES_MAX:
        return _added(((each.topic, _ALL), each) for each in queues)
    told = set(topics[:SERIES_MAX])
    return _added(((each.topic if each.topic in told else _OTHERS, _ALL), each) for each in queues)


def _added(rows: Iterable[tuple[tuple[str, str], QueueFigures]]) -> dict[tuple[str, str], tuple[int, ...]]:
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for labels, each in rows:
        values = (*each.totals, max(0, each.end - each.begin))
        before = found.get(labels)
        found[labels] = values if before is None else tuple(map(sum, zip(before, values, strict=True)))
    return found
