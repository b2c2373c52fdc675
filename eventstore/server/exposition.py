"""Writes figures in the format of Prometheus. The only module that needs its library; import it once somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventstore.metrics import LabelledCollector, MetricSource
from eventstore.server.prometheus import exported_name

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def text_of(sources: Sequence[MetricSource[Any]], collectors: Sequence[LabelledCollector] = ()) -> bytes:
    """Returns the text of /metrics."""
    return generate_latest(_registry(sources, collectors))


def application_of(sources: Sequence[MetricSource[Any]], collectors: Sequence[LabelledCollector]) -> WSGIApplication:
    """Returns what answers /metrics over HTTP, in the form that the monitor asks for."""
    return make_wsgi_app(_registry(sources, collectors))


def _registry(sources: Sequence[MetricSource[Any]], collectors: Sequence[LabelledCollector]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Exported(sources, collectors))
    return registry


class _Exported(Collector):
    """Reads the figures when they are scraped. A metric that is not a text is `eventstore_NAME`; times are in seconds."""

    def __init__(self, sources: Sequence[MetricSource[Any]], collectors: Sequence[LabelledCollector]) -> None:
        self._sources, self._collectors = sources, collectors

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            for metric, value in source.read():
                if isinstance(value, str) or value is None:
                    continue
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                unit = 1_000_000 if metric.name.endswith("_microseconds") else 1
                yield family(exported_name(metric.name), metric.help, value=value / unit)
        for collector in self._collectors:
            for figures in collector.collect():
                declared = figures.metric
                labelled = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
                exported = labelled(exported_name(declared.name), declared.help, labels=declared.labels)
                for labels, number in figures.values:
                    exported.add_metric(labels, number)
                yield exported
