"""Names declared metrics as Prometheus has them, and reads some of them by these names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal

from eventstore.alarms.figure import Figure
from eventstore.metrics import LabelledCollector, MetricSource

PREFIX = "eventstore_"


def figures_of(
    sources: Iterable[MetricSource[Any]], collectors: Iterable[LabelledCollector], wanted: Collection[str]
) -> Iterator[Figure]:
    """Yields the figures of these names, as they are exported, for the rules of alarms."""
    for source in sources:
        chosen = [metric for metric in source.declared if metric.kind != "text" and figure_name(metric.name) in wanted]
        for metric, value in MetricSource(chosen, source.subject).read() if chosen else ():
            if value is not None and not isinstance(value, str):
                unit = 1_000_000 if metric.name.endswith("_microseconds") else 1
                yield Figure(figure_name(metric.name), (), value / unit, "counter" if metric.kind == "counter" else "gauge")
    for collector in collectors:
        if any(figure_name(each.name) in wanted for each in collector.declared):
            yield from _labelled_figures(collector, wanted)


def _labelled_figures(collector: LabelledCollector, wanted: Collection[str]) -> Iterator[Figure]:
    for figures in collector.collect():
        metric = figures.metric
        name = figure_name(metric.name)
        if name in wanted:
            kind: Literal["counter", "gauge"] = "counter" if metric.kind == "counter" else "gauge"
            for labels, value in figures.values:
                yield Figure(name, tuple(sorted(zip(metric.labels, labels, strict=True))), value, kind)


def figure_name(name: str) -> str:
    """Returns the name of a metric for a rule: as it is exported, without `eventstore_` and `_total`."""
    return exported_name(name).removeprefix(PREFIX)


def exported_name(name: str) -> str:
    """Returns a metric's name in Prometheus, without the `_total` that counters end with."""
    return PREFIX + name.replace("_microseconds", "_seconds")
