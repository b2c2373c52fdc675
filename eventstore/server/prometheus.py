"""Exports declared metrics to Prometheus. They are read at the moment they are scraped, so they cost nothing before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventstore.metrics import LabelledMetric, Source

PREFIX = "eventstore_"


class SourceCollector(Collector):
    """Exports every metric that is not a text as `eventstore_NAME`; times are in seconds, as is the custom."""

    def __init__(self, sources: Sequence[Source[Any]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            for metric, value in source.read():
                if isinstance(value, str) or value is None:
                    continue
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                unit = 1_000_000 if metric.name.endswith("_microseconds") else 1
                yield family(exported_name(metric.name), metric.help, value=value / unit)


def exported_name(name: str) -> str:
    """Returns a metric's name in Prometheus, without the `_total` that counters end with."""
    return PREFIX + name.replace("_microseconds", "_seconds")


def labelled_family(metric: LabelledMetric) -> CounterMetricFamily | GaugeMetricFamily:
    """Returns an empty family to add values to."""
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(exported_name(metric.name), metric.help, labels=metric.labels)
