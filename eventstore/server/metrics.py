"""Figures for Prometheus: read from the store and the server at the moment they are asked for, so they cost nothing before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Figures = Callable[[], dict[str, str | int | bool | None]]

_COUNTERS: Final = frozenset(
    {
        "events",
        "duplicates",
        "conflicts",
        "refused",
        "batches",
        "batches_in_place",
        "write_microseconds",
        "sort_failures",
        "known_misses",
        "connections_accepted",
        "connections_turned_away",
        "requests",
        "bad_requests",
        "appends_passed",
        "commands_handled",
        "command_wait_microseconds",
        "command_handle_microseconds",
        "command_conflicts",
        "command_reruns",
        "command_repeats",
        "handlers_slow",
        "aggregates_evicted",
        "aggregates_restored",
        "persist_failures",
        "restore_failures",
        "events_published",
        "publish_failures",
        "broker_messages",
        "broker_messages_refused",
        "broker_batches",
        "broker_batches_in_place",
        "broker_write_microseconds",
    }
)


class StoreCollector(Collector):
    """Turns every numeric figure into `eventstore_NAME`; times are in seconds there, as is the custom."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for name, value in self._figures().items():
            if isinstance(value, str) or value is None:
                continue
            kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            unit = 1_000_000 if name.endswith("_microseconds") else 1
            shown = name.replace("_microseconds", "_seconds")
            yield kind(f"eventstore_{shown}", shown.replace("_", " "), value=value / unit)


def registry_of(figures: Figures) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(figures))
    return registry
