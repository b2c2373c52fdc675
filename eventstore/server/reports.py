"""What a server says about itself: which metrics it has, and its reports for /metrics, /health and STATS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eventstore.metrics import Source, Stats
from eventstore.server.broker.service import BrokerService, broker_source
from eventstore.server.mailbox_metrics import MAILBOX_METRICS
from eventstore.server.mailbox_wiring import ServerMailboxes
from eventstore.server.outbox.local_outbox import PUBLISHING_METRICS, Publishing
from eventstore.server.reactions.reaction_metrics import REACTION_METRICS
from eventstore.server.reactions.reaction_runner import ReactionRunner
from eventstore.server.requests.dispatch import DISPATCH_METRICS, Dispatch
from eventstore.server.requests.subscriptions import SUBSCRIPTION_METRICS, Subscriptions
from eventstore.server.requests.waiting_commands import WAITING_METRICS, WaitingCommands
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.store_stats import STORE_METRICS


@dataclass(frozen=True, slots=True)
class Reports:
    """What a server says about itself, on any thread: its figures, its health, and its metrics as Prometheus reads them."""

    stats: Callable[[], Stats]
    health: Callable[[], Stats]
    metrics: Callable[[], bytes]


def sources_of(
    store: EmbeddedStore,
    mailboxes: ServerMailboxes,
    waiting: WaitingCommands,
    dispatch: Dispatch,
    subscriptions: Subscriptions,
    broker: BrokerService | None,
    publishing: Publishing,
    reactions: ReactionRunner,
) -> list[Source[Any]]:
    """Returns all metrics of a server, in the order they are shown."""
    sources: list[Source[Any]] = [
        Source(STORE_METRICS, lambda: store),
        Source(MAILBOX_METRICS, mailboxes.stats),
        Source(WAITING_METRICS, lambda: waiting),
        Source(DISPATCH_METRICS, lambda: dispatch),
        Source(SUBSCRIPTION_METRICS, lambda: subscriptions),
        Source(REACTION_METRICS, lambda: reactions),
    ]
    if broker is not None:
        sources += [broker_source(broker), Source(PUBLISHING_METRICS, lambda: publishing)]
    return sources
