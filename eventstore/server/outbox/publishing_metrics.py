"""Metrics of publishing: all topics together in `stats`, and each by its name in `/metrics`."""

from __future__ import annotations

from typing import Final

from eventstore.metrics import LabelledMetric, Metric, MetricSource, counter, gauge, text
from eventstore.records.parking_record import TOPIC
from eventstore.server.feature import Feature
from eventstore.server.outbox.publishing import Publishing
from eventstore.server.reactions.reaction_metrics import FollowerCollector

PUBLISHING_METRICS: Final[tuple[Metric[Publishing], ...]] = (
    counter(
        "events_published",
        "events sent to the topics that are published to, by this process",
        lambda publishing: sum(each.published for each in publishing.outboxes),
    ),
    gauge(
        "published_sequence",
        "the sequence up to which all events are published or parked, of every topic; 0: there is none",
        lambda publishing: min((each.place for each in publishing.outboxes), default=0),
    ),
    gauge(
        "publish_backlog",
        "events that are not published yet",
        lambda publishing: publishing.backlog,
        "it grows: the broker does not keep up, or publishing fails, for the reason in `/health` and in the log",
    ),
    gauge(
        "publish_lag_microseconds",
        "age of the oldest event that is not published; 0: none",
        lambda publishing: publishing.lag_microseconds,
        "it grows",
    ),
    gauge(
        "publish_refused",
        "1: a topic or its checkpoint ends with events that the store does not have",
        lambda publishing: any(each.refused for each in publishing.outboxes),
        "it is 1: see [BROKER](BROKER.md#events-as-messages)",
    ),
    text(
        "publish_error",
        "why nothing is published, if so",
        lambda publishing: next((each.told for each in publishing.outboxes if each.told is not None), None),
    ),
    gauge(
        "publish_parked",
        "events of which no message could be made, and those that wait for them",
        lambda publishing: publishing.events_parked,
        "it is not 0: `eventstore reactions show topic:NAME`",
    ),
    gauge(
        "publish_records_passed_over",
        "malformed records of parked events, which are ignored",
        lambda publishing: publishing.passed_over,
        "it is not 0: the log names the first",
    ),
    counter(
        "publish_failures",
        "batches that failed and were sent again",
        lambda publishing: sum(each.failures for each in publishing.outboxes),
        "it grows",
    ),
)

PUBLICATION_LABELLED: Final = (
    LabelledMetric("publication_waiting", "gauge", "1: publishing to the topic is stopped or refused", ("topic",)),
    LabelledMetric("publication_position", "gauge", "sequence up to which its events are published or parked", ("topic",)),
    LabelledMetric("publication_parked", "gauge", "events that publishing to the topic has parked", ("topic",)),
    LabelledMetric("publication_lag_events", "gauge", "events that are not published to the topic yet", ("topic",)),
    LabelledMetric("publication_lag_microseconds", "gauge", "age of the oldest of these", ("topic",)),
)


def publishing_feature(publishing: Publishing) -> Feature:
    """Returns the publishing of a server that has a broker."""
    return Feature(
        metrics=[MetricSource(PUBLISHING_METRICS, lambda: publishing)],
        collectors=[FollowerCollector(PUBLICATION_LABELLED, publishing.progress, TOPIC)],
        attention=lambda: publishing.attention,
        run=publishing.run,
    )
