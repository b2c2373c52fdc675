"""Metrics of the alarms."""

from __future__ import annotations

from typing import Final

from eventstore.alarms.alarms import Alarms
from eventstore.metrics import LabelledMetric, Metric, counter, gauge, text

ALARM_METRICS: Final[tuple[Metric[Alarms], ...]] = (
    gauge(
        "alarms_raised",
        "alarms that are raised, each subject of a rule counted",
        lambda alarms: len(alarms.watch.raised(silenced=True)),
        "it is not 0: `eventstore alarms list`",
    ),
    text("alarms", "the rules that are raised", lambda alarms: alarms.names_raised),
    gauge("alarms_silenced", "rules that are silenced", lambda alarms: len(alarms.watch.silences)),
    counter("alarm_evaluations", "times the rules were evaluated", lambda alarms: alarms.evaluations),
    counter(
        "alarm_notices_sent", "mails and posts that were taken", lambda alarms: sum(each.sent for each in alarms.deliveries)
    ),
    gauge(
        "alarm_notices_waiting",
        "mails and posts that are still to be sent",
        lambda alarms: sum(each.waiting for each in alarms.deliveries),
    ),
    counter(
        "alarm_sends_failed",
        "attempts that failed, and are made again",
        lambda alarms: sum(each.failed for each in alarms.deliveries),
        "it grows: the log gives the reason",
    ),
    counter(
        "alarm_notices_undelivered",
        "mails and posts that were given up",
        lambda alarms: sum(each.undelivered for each in alarms.deliveries),
        "it grows: no one was notified",
    ),
)

ALARM: Final = LabelledMetric("alarm", "gauge", "subjects for which an alarm is raised, by its name", ("name",))
NODE_ALARM: Final = LabelledMetric("node_alarm", "gauge", "the same, of the alarms of a node itself", ("name",))


def raised_by_name(alarms: Alarms) -> dict[str, int]:
    """Returns for how many subjects each alarm is raised."""
    counts = dict.fromkeys(alarms.watch.rules, 0)
    for each in alarms.watch.raised(silenced=True):
        counts[each.rule.name] += 1
    return counts
