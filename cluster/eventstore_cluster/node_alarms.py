"""The alarms of a node: on what it knows of the whole cluster, its disk and its certificate. Its shards have theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from eventstore.alarms.alarm_metrics import ALARM_METRICS, NODE_ALARM, raised_by_name
from eventstore.alarms.alarms import Alarms
from eventstore.alarms.figure import Figure
from eventstore.metrics import LabelledMetric, MetricSource, StatValues, read_stats
from eventstore.security.tls import ServerTls
from eventstore.server.access.tls_metrics import TLS_METRICS
from eventstore.server.process_metrics import DISK_METRICS

SHARD_UNSERVED: Final = LabelledMetric("shard_unserved", "gauge", "1: no process of the cluster serves the shard", ("shard",))
NODE_SILENCES: Final = "node-silences.json"
"""Not that of a shard, which may have the same folder."""
NODE_FIGURES: Final = (SHARD_UNSERVED,)


class NodeAlarms:
    """Evaluates the alarms of a node.

    `unserved` returns the shards of the cluster that no process serves. `unserved` and `figures` are called on a thread.
    """

    def __init__(self, alarms: Alarms, data: Path, unserved: Callable[[], Iterable[int]], tls: ServerTls | None = None) -> None:
        self.alarms, self._unserved, self._data = alarms, unserved, data
        self._disk = MetricSource(DISK_METRICS, lambda: data)
        self._tls = None if tls is None else MetricSource(TLS_METRICS, lambda: tls)

    async def run(self, source: str) -> None:
        """Evaluates until cancelled. `source`: the node's name in the notices."""
        self.alarms.source = source
        self.alarms.keep_silences(self._data / NODE_SILENCES)
        await self.alarms.run(self.figures)

    def figures(self, wanted: Collection[str]) -> Iterator[Figure]:
        """Returns the figures of these names that a node has."""
        if SHARD_UNSERVED.name in wanted:
            yield from (Figure(SHARD_UNSERVED.name, (("shard", str(number)),), 1.0) for number in list(self._unserved()))
        figures = [*self._disk.read(), *(() if self._tls is None else self._tls.read())]
        for metric, value in figures:
            if metric.name in wanted and isinstance(value, int):
                yield Figure(metric.name, (), value, "counter" if metric.kind == "counter" else "gauge")

    def stats(self) -> StatValues:
        """Returns what `stats` and `/health` show of them."""
        tls = {} if self._tls is None else read_stats([self._tls])
        return read_stats([self._disk]) | tls | read_stats([MetricSource(ALARM_METRICS, lambda: self.alarms)])

    def lines(self) -> Iterator[str]:
        """Yields lines of /metrics."""
        unserved = dict.fromkeys(map(str, self._unserved()), 1)
        for metric, values in ((SHARD_UNSERVED, unserved), (NODE_ALARM, raised_by_name(self.alarms))):
            name = f"eventstore_{metric.name}"
            yield f"# HELP {name} {metric.help}"
            yield f"# TYPE {name} {metric.kind}"
            yield from (f'{name}{{{metric.labels[0]}="{label}"}} {value}' for label, value in values.items())
