"""All figures that rules of alarms may be about, with their labels."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from eventstore.alarms.alarms import Alarms
from eventstore.metrics import LabelledMetric, Metric, labels_of
from eventstore.server.metric_subjects import LABELLED, METRICS_BY_SUBJECT
from eventstore.server.projection_watch import PROJECTION_LABELLED
from eventstore.server.prometheus import figure_name
from eventstore.settings.server import ServerSettings

OF_CLUSTERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "replica_epoch",
            "replicas_in_sync",
            "replicas_wanted",
            "replicas_needed",
            "replica_lag_seconds",
            "moves_paused",
            "log_bytes",
        ),
        (),
    ),
    "replica_behind_seconds": ("node",),
    "replica_behind_bytes": ("node",),
    "shard_unserved": ("shard",),
}
"""Those of replicas and nodes, which are declared above this package; a test compares them."""

_DECLARED: Final[tuple[Metric[Any] | LabelledMetric, ...]] = (
    *chain.from_iterable(METRICS_BY_SUBJECT.values()),
    *LABELLED,
    *PROJECTION_LABELLED,
)
KNOWN_FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    **OF_CLUSTERS,
    **{figure_name(each.name): labels_of(each) for each in _DECLARED if each.kind != "text"},
}
"""The names of the labels by the name of the figure."""


def alarms_of(settings: ServerSettings) -> Alarms:
    """Returns the alarms of the settings. Raises InvalidArgument: a rule or a way of delivery is wrong; names it."""
    return Alarms(settings.alarms, KNOWN_FIGURES)
