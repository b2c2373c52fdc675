"""Metrics of the reactions: all together in `stats`, and each by its name in `/metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric, Metric, MetricSource, gauge
from eventstore.protocol.reaction_info import ReactionInfo
from eventstore.protocol.request_declaration import Request
from eventstore.server.feature import Feature, Route
from eventstore.server.reactions.reaction_runner import Reactions

REACTION_METRICS: Final[tuple[Metric[Reactions], ...]] = (
    gauge("reactions", "reactions that run here", lambda runner: len(runner.progress())),
    gauge(
        "reactions_waiting",
        "of these, stopped at an event, or refused because their checkpoint does not fit the store",
        lambda runner: sum(each.state != "running" for each in runner.progress()),
        "it is not 0: `eventstore reactions list` gives the reason",
    ),
    gauge(
        "reactions_parked",
        "events that reactions failed on, and those that wait for them",
        lambda runner: sum(each.parked for each in runner.progress()),
        "it is not 0: `eventstore reactions show NAME`",
    ),
    gauge(
        "reactions_records_passed_over",
        "malformed records of parked events, which are ignored",
        lambda runner: runner.passed_over,
        "it is not 0: the log names the first; who may park wrote it, or an earlier program took it",
    ),
    gauge(
        "reactions_lag_events",
        "events that the slowest reaction has still to handle",
        lambda runner: max((each.lag_events for each in runner.progress()), default=0),
        "it grows: a reaction is slow, or waits",
    ),
    gauge(
        "reactions_lag_microseconds",
        "age of the oldest event in the hands of a reaction; 0: none",
        lambda runner: max((each.lag_microseconds for each in runner.progress()), default=0),
        "it grows",
    ),
)

REACTION_LABELLED: Final = (
    LabelledMetric("reaction_waiting", "gauge", "1: the reaction is stopped or refused", ("reaction",)),
    LabelledMetric("reaction_position", "gauge", "sequence up to which its events are handled or parked", ("reaction",)),
    LabelledMetric("reaction_parked", "gauge", "events that the reaction has parked", ("reaction",)),
    LabelledMetric("reaction_lag_events", "gauge", "events that the reaction has still to handle", ("reaction",)),
    LabelledMetric("reaction_lag_microseconds", "gauge", "age of the oldest event in its hands", ("reaction",)),
)


class FollowerCollector(LabelledCollector):
    """Exports the figures of each follower, labelled with its name."""

    def __init__(
        self, declared: Sequence[LabelledMetric], progress: Callable[[], Iterable[ReactionInfo]], prefix: str = ""
    ) -> None:
        """`declared`: waiting, position, parked, lag in events, and in microseconds. `prefix`: of names, left out."""
        self.declared = declared
        self._progress, self._prefix = progress, prefix

    def collect(self) -> Iterator[LabelledFigures]:
        families = [LabelledFigures(metric) for metric in self.declared]
        for each in self._progress():
            waits, lag_s = each.state != "running", each.lag_microseconds / 1_000_000
            values = waits, each.position, each.parked, each.lag_events, lag_s
            for family, value in zip(families, values, strict=True):
                family.add([each.name.removeprefix(self._prefix)], float(value))
        yield from families


def reaction_feature(
    reactions: Reactions, routes: Mapping[type[Request], Route], run: Callable[[], Awaitable[None]] | None
) -> Feature:
    """Returns the reactions of a server or worker, which `run` runs, with the requests of operators."""
    return Feature(
        routes=routes,
        metrics=[MetricSource(REACTION_METRICS, lambda: reactions)],
        collectors=[FollowerCollector(REACTION_LABELLED, reactions.progress)],
        attention=lambda: reactions.attention,
        run=run,
    )
