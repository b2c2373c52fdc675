"""Metrics of the timers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from eventstore.metrics import Metric, MetricSource, counter, gauge
from eventstore.protocol.request_declaration import Request
from eventstore.server.feature import Feature, Route
from eventstore.server.timers.timer_runner import RunningTimers

TIMER_METRICS: Final[tuple[Metric[RunningTimers], ...]] = (
    gauge("timers_pending", "timers whose commands are not sent yet", lambda running: running.pending),
    gauge(
        "timers_lag_microseconds",
        "by how much the oldest due timer is late; 0: none is",
        lambda running: running.lag_us,
        "it grows: handlers do not keep up, or nothing is sent; /health says why",
    ),
    gauge("timers_late_microseconds", "by how much the last command was late", lambda running: running.late_us),
    gauge(
        "timers_parked",
        "timers whose commands failed",
        lambda running: running.parked,
        "it is not 0: `eventstore timers list` says why",
    ),
    gauge(
        "timers_held",
        "1: nothing is sent, because the clock cannot be trusted",
        lambda running: int(running.held),
        "it is 1: set the clock right, or `eventstore timers confirm-clock`",
    ),
    gauge(
        "timers_passed_over",
        "malformed events of timers, which are ignored",
        lambda running: running.passed_over,
        "it is not 0: the log names them",
    ),
    counter("timers_accepted", "commands of timers that changed something", lambda running: running.ended("accepted")),
    counter("timers_unchanged", "commands of timers that changed nothing", lambda running: running.ended("unchanged")),
    counter("timers_rejected", "commands of timers that their handlers rejected", lambda running: running.ended("rejected")),
    counter("timers_failed", "commands of timers that were parked", lambda running: running.ended("parked")),
)


def timer_feature(
    running: RunningTimers, routes: Mapping[type[Request], Route], run: Callable[[], Awaitable[None]] | None
) -> Feature:
    """Returns the timers of a server or worker, which `run` runs, with the requests of operators."""
    return Feature(
        routes=routes,
        metrics=[MetricSource(TIMER_METRICS, lambda: running)],
        attention=lambda: running.attention,
        run=run,
    )
