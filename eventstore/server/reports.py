"""What a server says about itself: which metrics it has, and its reports for /metrics, /health and STATS."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from eventstore.alarms.figure import Figure
from eventstore.metrics import MetricSource, StatValues, read_stats
from eventstore.security.tls import ServerTls
from eventstore.server.access.access_metrics import ACCESS_METRICS
from eventstore.server.access.doorkeeper import Doorkeeper
from eventstore.server.access.tls_metrics import TLS_METRICS
from eventstore.server.broker.service import BrokerService, broker_source
from eventstore.server.mailbox_metrics import MAILBOX_METRICS
from eventstore.server.mailbox_wiring import ServerMailboxes
from eventstore.server.outbox.publishing import Publishing
from eventstore.server.outbox.publishing_metrics import PUBLISHING_METRICS
from eventstore.server.process_metrics import DISK_METRICS, PROCESS_METRICS
from eventstore.server.prometheus import SourceCollector, figures_of
from eventstore.server.reactions.connected_projections import CONNECTED_PROJECTION_METRICS, ConnectedProjections
from eventstore.server.reactions.reaction_metrics import REACTION_METRICS
from eventstore.server.reactions.reaction_runner import Reactions
from eventstore.server.requests.commands import WAITING_METRICS, WaitingCommands
from eventstore.server.requests.dispatch import DISPATCH_METRICS, Dispatch
from eventstore.server.requests.read_requests import READ_METRICS, ReadRequests
from eventstore.server.requests.subscriptions import SUBSCRIPTION_METRICS, ServedSubscriptions
from eventstore.server.verification.verifying import VERIFYING_METRICS, Verifying
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.store_stats import STORE_METRICS

_LONG_S: Final = 0.02
_REST: Final = 4


class Attentive(Protocol):
    """A part of a server that may need an operator."""

    @property
    def attention(self) -> str | None: ...


class Reports:
    """What a server says about itself, on any thread: its figures, its health, and its metrics as Prometheus reads them.

    It exists before the parts that it reports, because STATS is answered from it: `add` names them.
    """

    def __init__(
        self,
        healthy: Callable[[], bool],
        reactions: Reactions | None,
        others: Sequence[Attentive] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._healthy, self._clock = healthy, clock
        self._text, self._text_until, self._text_lock = b"", -math.inf, threading.Lock()
        self._reactions = reactions
        self._attentive: Sequence[Attentive] = others if reactions is None else (reactions, *others)
        self._sources: list[MetricSource[Any]] = []
        self._collectors: list[Collector] = []
        self.registry = CollectorRegistry(auto_describe=False)

    def add(self, sources: Sequence[MetricSource[Any]], collectors: Sequence[Collector]) -> None:
        """Reports these metrics, and what the collectors export to Prometheus alone."""
        self._sources += sources
        self._collectors += collectors
        self.registry.register(SourceCollector(sources))
        for collector in collectors:
            self.registry.register(collector)

    def watch(self, part: Attentive) -> None:
        """Reports what this part needs, too."""
        self._attentive = (*self._attentive, part)

    def stats(self) -> StatValues:
        found = read_stats(self._sources)
        for part in self._attentive:
            found["attention"] = found.get("attention") or part.attention
        return found

    def health(self) -> StatValues:
        """Returns the figures and whether the server is healthy; degraded: it serves, and needs an operator."""
        found, reactions = self.stats(), self._reactions
        summary: StatValues = {
            "healthy": self._healthy(),
            "degraded": found.get("attention") is not None,
            "reactions_failure": None if reactions is None else reactions.attention,
        }
        return summary | found

    def figures(self, wanted: Collection[str]) -> Iterator[Figure]:
        """Returns the figures of these names, from where the other reports have them."""
        return figures_of(self._sources, self._collectors, wanted)

    def metrics(self) -> bytes:
        """Returns the text of /metrics. Where that takes long, as with the offsets of thousands of groups, it is made once for
        all who ask, and again after four times as long.
        """
        with self._text_lock:
            if self._clock() >= self._text_until:
                began = time.thread_time()
                self._text = generate_latest(self.registry)
                took = time.thread_time() - began
                self._text_until = self._clock() + took * _REST if took > _LONG_S else -math.inf
            return self._text


def sources_of(
    store: EmbeddedStore,
    mailboxes: ServerMailboxes,
    waiting: WaitingCommands,
    dispatch: Dispatch,
    reads: ReadRequests,
    subscriptions: ServedSubscriptions,
    broker: BrokerService | None,
    publishing: Publishing,
    reactions: Reactions,
    projections: ConnectedProjections,
    verifying: Verifying,
    door: Doorkeeper | None,
    tls: ServerTls | None,
    data: Path,
) -> list[MetricSource[Any]]:
    """Returns all metrics of a server, in the order they are shown."""
    sources: list[MetricSource[Any]] = [
        MetricSource(STORE_METRICS, lambda: store),
        MetricSource(MAILBOX_METRICS, mailboxes.stats),
        MetricSource(WAITING_METRICS, lambda: waiting),
        MetricSource(DISPATCH_METRICS, lambda: dispatch),
        MetricSource(READ_METRICS, lambda: reads),
        MetricSource(SUBSCRIPTION_METRICS, lambda: subscriptions),
        MetricSource(REACTION_METRICS, lambda: reactions),
        MetricSource(CONNECTED_PROJECTION_METRICS, lambda: projections),
        MetricSource(PROCESS_METRICS, lambda: None),
        MetricSource(DISK_METRICS, lambda: data),
    ]
    if broker is not None:
        sources += [broker_source(broker), MetricSource(PUBLISHING_METRICS, lambda: publishing)]
    sources.append(MetricSource(VERIFYING_METRICS, lambda: verifying))
    if door is not None:
        sources.append(MetricSource(ACCESS_METRICS, lambda: door))
    if tls is not None:
        sources.append(MetricSource(TLS_METRICS, lambda: tls))
    return sources
