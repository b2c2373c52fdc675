"""Metrics, declared next to the code that counts them: `stats`, `/health`, `/metrics` and docs/REFERENCE.md follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

MetricValue: TypeAlias = str | int | bool | None
StatValues: TypeAlias = dict[str, MetricValue]
MetricKind: TypeAlias = Literal["counter", "gauge", "text"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """`read` returns its value. `watch`: when an operator should look at it. A text is shown by `stats` only."""

    name: str
    kind: MetricKind
    help: str
    read: Callable[[S], MetricValue]
    watch: str = ""


@dataclass(frozen=True, slots=True)
class LabelledMetric:
    """A metric with a value for each combination of its labels; only `/metrics` shows it."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]


class LabelledFigures:
    """The values of a labelled metric, each with the values of its labels."""

    def __init__(self, metric: LabelledMetric) -> None:
        self.metric = metric
        self.values: list[tuple[Sequence[str], float]] = []

    def add(self, labels: Sequence[str], value: float) -> None:
        self.values.append((labels, value))


class LabelledCollector(ABC):
    """Reads metrics with labels. That costs something, so it is known before what there is."""

    declared: Sequence[LabelledMetric]

    @abstractmethod
    def collect(self) -> Iterator[LabelledFigures]: ...


def labels_of(metric: Metric[Any] | LabelledMetric) -> tuple[str, ...]:
    """Returns the names of the metric's labels."""
    return metric.labels if isinstance(metric, LabelledMetric) else ()


@dataclass(frozen=True, slots=True)
class MetricSource(Generic[S]):
    """Declared metrics and what they are read from. Safe on any thread if `subject` and the declared reads are."""

    declared: Sequence[Metric[S]]
    subject: Callable[[], S]

    def read(self) -> Iterator[tuple[Metric[S], MetricValue]]:
        subject = self.subject()
        return ((metric, metric.read(subject)) for metric in self.declared)


def counter(name: str, help: str, read: Callable[[S], MetricValue], watch: str = "") -> Metric[S]:
    return Metric(name, "counter", help, read, watch)


def gauge(name: str, help: str, read: Callable[[S], MetricValue], watch: str = "") -> Metric[S]:
    return Metric(name, "gauge", help, read, watch)


def text(name: str, help: str, read: Callable[[S], MetricValue], watch: str = "") -> Metric[S]:
    return Metric(name, "text", help, read, watch)


def read_stats(sources: Iterable[MetricSource[S]]) -> StatValues:
    """Returns the values of all metrics, by name."""
    return {metric.name: value for source in sources for metric, value in source.read()}
