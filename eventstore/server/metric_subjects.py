"""All metrics by what they are about, in the order in which they are shown: by `eventstore stats` and in docs/REFERENCE.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from eventstore.alarms.alarm_metrics import ALARM_METRICS
from eventstore.metrics import LabelledMetric, Metric
from eventstore.server.access.access_metrics import ACCESS_METRICS
from eventstore.server.access.tls_metrics import TLS_METRICS
from eventstore.server.aggregate_snapshots import SNAPSHOT_DIFFERS, SNAPSHOT_METRICS
from eventstore.server.backups import BACKUP_AGE, BACKUP_METRICS
from eventstore.server.broker.broker_metrics import GROUP_METRICS, QUEUE_METRICS
from eventstore.server.broker.service import BROKER_METRICS
from eventstore.server.kept_commands import KEPT_METRICS
from eventstore.server.mailbox_metrics import MAILBOX_METRICS
from eventstore.server.outbox.publishing_metrics import PUBLICATION_LABELLED, PUBLISHING_METRICS
from eventstore.server.process_metrics import DISK_METRICS, PROCESS_METRICS
from eventstore.server.reactions.connected_projections import CONNECTED_PROJECTION_METRICS, PROJECTION_SILENT
from eventstore.server.reactions.reaction_metrics import REACTION_LABELLED, REACTION_METRICS
from eventstore.server.requests.commands import WAITING_METRICS
from eventstore.server.requests.dispatch import DISPATCH_METRICS
from eventstore.server.requests.precedence import PRECEDENCE_METRICS
from eventstore.server.requests.read_requests import READ_METRICS
from eventstore.server.requests.subscriptions import SUBSCRIPTION_METRICS
from eventstore.server.subjects import SUBJECT_METRICS
from eventstore.server.timers.timer_metrics import TIMER_METRICS
from eventstore.server.verification.verifying import VERIFYING_METRICS
from eventstore.server.work.worked_shards import WORKER_METRICS
from eventstore.store.store_stats import STORE_METRICS

METRICS_BY_SUBJECT: Final[Mapping[str, Sequence[Metric[Any]]]] = {
    "Store": STORE_METRICS,
    "Verifying": VERIFYING_METRICS,
    "Commands": (*MAILBOX_METRICS, *WAITING_METRICS, *KEPT_METRICS, *PRECEDENCE_METRICS),
    "Snapshots": SNAPSHOT_METRICS,
    "Workers": WORKER_METRICS,
    "Connections": (*DISPATCH_METRICS, *READ_METRICS, *SUBSCRIPTION_METRICS),
    "TLS": TLS_METRICS,
    "Access": ACCESS_METRICS,
    "Broker": BROKER_METRICS,
    "Publishing": PUBLISHING_METRICS,
    "Reactions": REACTION_METRICS,
    "Timers": TIMER_METRICS,
    "Projections": CONNECTED_PROJECTION_METRICS,
    "Backups": BACKUP_METRICS,
    "Subjects": SUBJECT_METRICS,
    "Process": PROCESS_METRICS,
    "Disk": DISK_METRICS,
    "Alarms": ALARM_METRICS,
}
LABELLED: Final[tuple[LabelledMetric, ...]] = (
    *REACTION_LABELLED,
    *PUBLICATION_LABELLED,
    *QUEUE_METRICS,
    *GROUP_METRICS,
    PROJECTION_SILENT,
    BACKUP_AGE,
    SNAPSHOT_DIFFERS,
)
"""Those that `/metrics` has for each reaction, topic, queue, group, projection, place of backups and class of aggregates."""
