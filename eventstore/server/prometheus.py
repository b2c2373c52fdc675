"""Exports declared metrics to Prometheus. They are read at the moment they are scraped, so they cost nothing before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventstore.alarms.figure import Figure
from eventstore.metrics import LabelledMetric, MetricSource

PREFIX = "eventstore_"


class SourceCollector(Collector):
    """Exports every metric that is not a text as `eventstore_NAME`; times are in seconds, as is the custom."""

    def __init__(self, sources: Sequence[MetricSource[Any]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            for metric, value in source.read():
                if isinstance(value, str) or value is None:
                    continue
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                unit = 1_000_000 if metric.name.endswith("_microseconds") else 1
                yield family(exported_name(metric.name), metric.help, value=value / unit)


class LabelledCollector(Collector):
    """Exports metrics with labels. Collecting costs something, so it is known before what there is."""

    declared: Sequence[LabelledMetric]

    @abstractmethod
    def collect(self) -> Iterator[Metric]: ...


def figures_of(
    sources: Iterable[MetricSource[Any]], collectors: Iterable[Collector], wanted: Collection[str]
) -> Iterator[Figure]:
    """Yields the figures of these names, as they are exported, for the rules of alarms."""
    for source in sources:
        chosen = [metric for metric in source.declared if metric.kind != "text" and figure_name(metric.name) in wanted]
        for metric, value in MetricSource(chosen, source.subject).read() if chosen else ():
            if value is not None and not isinstance(value, str):
                unit = 1_000_000 if metric.name.endswith("_microseconds") else 1
                yield Figure(figure_name(metric.name), (), value / unit, "counter" if metric.kind == "counter" else "gauge")
    for collector in collectors:
        if isinstance(collector, LabelledCollector) and any(figure_name(each.name) in wanted for each in collector.declared):
            yield from _labelled_figures(collector, wanted)


def _labelled_figures(collector: LabelledCollector, wanted: Collection[str]) -> Iterator[Figure]:
    for family in collector.collect():
        name = family.name.removeprefix(PREFIX)
        if name in wanted:
            kind: Literal["counter", "gauge"] = "counter" if family.type == "counter" else "gauge"
            for sample in family.samples:
                yield Figure(name, tuple(sorted(sample.labels.items())), sample.value, kind)


def figure_name(name: str) -> str:
    """Returns the name of a metric for a rule: as it is exported, without `eventstore_` and `_total`."""
    return exported_name(name).removeprefix(PREFIX)


def text_of(sources: Sequence[MetricSource[Any]]) -> bytes:
    """Returns the text of /metrics of these alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SourceCollector(sources))
    return generate_latest(registry)


def exported_name(name: str) -> str:
    """Returns a metric's name in Prometheus, without the `_total` that counters end with."""
    return PREFIX + name.replace("_microseconds", "_seconds")


def labelled_family(metric: LabelledMetric) -> CounterMetricFamily | GaugeMetricFamily:
    """Returns an empty family to add values to."""
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(exported_name(metric.name), metric.help, labels=metric.labels)
