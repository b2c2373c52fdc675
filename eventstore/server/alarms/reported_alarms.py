"""Has the alarms of a server evaluated, and reports them in `stats`, `/health` and `/metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping

from eventstore.alarms.alarm_metrics import ALARM, ALARM_METRICS, raised_by_name
from eventstore.alarms.alarms import Alarms
from eventstore.metrics import LabelledCollector, LabelledFigures, MetricSource
from eventstore.protocol.request_declaration import Request
from eventstore.server.feature import Feature, Route


class AlarmCollector(LabelledCollector):
    """Exports for how many subjects each alarm is raised, labelled with its name."""

    declared = (ALARM,)

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms

    def collect(self) -> Iterator[LabelledFigures]:
        family = LabelledFigures(ALARM)
        for name, count in raised_by_name(self._alarms).items():
            family.add([name], count)
        yield family


def alarm_feature(
    alarms: Alarms, routes: Mapping[type[Request], Route] | None = None, run: Callable[[], Awaitable[None]] | None = None
) -> Feature:
    """Returns the alarms of a process. `run` evaluates them; None: they are evaluated elsewhere."""
    return Feature(
        routes=routes or {},
        metrics=[MetricSource(ALARM_METRICS, lambda: alarms)],
        collectors=[AlarmCollector(alarms)],
        attention=lambda: alarms.attention,
        run=run,
    )
