"""Has the alarms of a server evaluated, and reports them in `stats`, `/health` and `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from prometheus_client.core import Metric as Family

from eventstore.alarms.alarm_metrics import ALARM, ALARM_METRICS, raised_by_name
from eventstore.alarms.alarms import Alarms
from eventstore.metrics import MetricSource
from eventstore.server.prometheus import LabelledCollector, labelled_family
from eventstore.server.reports import Reports


class AlarmCollector(LabelledCollector):
    """Exports for how many subjects each alarm is raised, labelled with its name."""

    declared = (ALARM,)

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms

    def collect(self) -> Iterator[Family]:
        family = labelled_family(ALARM)
        for name, count in raised_by_name(self._alarms).items():
            family.add_metric([name], count)
        yield family


def watch_alarms(alarms: Alarms, source: str, reports: Reports, nursery: trio.Nursery) -> None:
    """Has the alarms evaluated on the figures of the reports, and reported with them."""
    alarms.source = source
    report_alarms(alarms, reports)
    nursery.start_soon(alarms.run, reports.figures)


def report_alarms(alarms: Alarms, reports: Reports) -> None:
    """Has the alarms reported; they are evaluated elsewhere."""
    reports.add([MetricSource(ALARM_METRICS, lambda: alarms)], [AlarmCollector(alarms)])
    reports.watch(alarms)
