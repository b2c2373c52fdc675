"""Metrics of the timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventstore.metrics import Metric, MetricSource, counter, gauge
from eventstore.protocol.request_declaration import Request
from eventstore.server.feature import Feature, Route
from eventstore.server.timers.timer_runner import TimerRunner

TIMER_METRICS: Final[tuple[Metric[TimerRunner], ...]] = (
    gauge("timers_pending", "timers whose commands are not sent yet", lambda runner: len(runner.timers.book)),
    gauge(
        "timers_lag_microseconds",
        "by how much the oldest due timer is late; 0: none is",
        lambda runner: runner.lag_us(),
        "it grows: handlers do not keep up, or nothing is sent; /health says why",
    ),
    gauge("timers_late_microseconds", "by how much the last command was late", lambda runner: runner.timers.late_us),
    gauge(
        "timers_parked",
        "timers whose commands failed",
        lambda runner: len(runner.timers.book.parked),
        "it is not 0: `eventstore timers list` says why",
    ),
    gauge(
        "timers_held",
        "1: nothing is sent, because the clock cannot be trusted",
        lambda runner: int(runner.timers.failure is not None),
        "it is 1: set the clock right, or `eventstore timers confirm-clock`",
    ),
    gauge(
        "timers_passed_over",
        "malformed events of timers, which are ignored",
        lambda runner: runner.timers.passed_over,
        "it is not 0: the log names them",
    ),
    counter("timers_accepted", "commands of timers that changed something", lambda runner: runner.timers.fired["accepted"]),
    counter("timers_unchanged", "commands of timers that changed nothing", lambda runner: runner.timers.fired["unchanged"]),
    counter(
        "timers_rejected", "commands of timers that their handlers rejected", lambda runner: runner.timers.fired["rejected"]
    ),
    counter("timers_failed", "commands of timers that were parked", lambda runner: runner.timers.fired["parked"]),
)


def timer_feature(runner: TimerRunner, routes: Mapping[type[Request], Route]) -> Feature:
    """Returns the timers of a server or worker, with the requests of operators."""
    return Feature(
        routes=routes,
        metrics=[MetricSource(TIMER_METRICS, lambda: runner)],
        attention=lambda: runner.attention,
        run=runner.run,
    )
