"""All metrics by what they are about, in the order in which they are shown: by `eventstore stats` and in docs/REFERENCE.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from eventstore.metrics import Metric
from eventstore.server.broker.service import BROKER_METRICS
from eventstore.server.mailbox_metrics import MAILBOX_METRICS
from eventstore.server.outbox.local_outbox import PUBLISHING_METRICS
from eventstore.server.process_metrics import PROCESS_METRICS
from eventstore.server.reactions.reaction_metrics import REACTION_METRICS
from eventstore.server.requests.dispatch import DISPATCH_METRICS
from eventstore.server.requests.subscriptions import SUBSCRIPTION_METRICS
from eventstore.server.requests.waiting_commands import WAITING_METRICS
from eventstore.store.store_stats import STORE_METRICS

METRICS_BY_SUBJECT: Final[Mapping[str, Sequence[Metric[Any]]]] = {
    "Store": STORE_METRICS,
    "Commands": (*MAILBOX_METRICS, *WAITING_METRICS),
    "Connections": (*DISPATCH_METRICS, *SUBSCRIPTION_METRICS),
    "Broker": BROKER_METRICS,
    "Publishing": PUBLISHING_METRICS,
    "Reactions": REACTION_METRICS,
    "Process": PROCESS_METRICS,
}
