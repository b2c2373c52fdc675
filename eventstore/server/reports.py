"""What a server says about itself: which metrics it has, and its reports for /metrics, /health and STATS."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from eventstore.alarms.figure import Figure
from eventstore.metrics import LabelledCollector, MetricSource, StatValues, read_stats
from eventstore.server.feature import Feature
from eventstore.server.prometheus import figures_of
from eventstore.server.reactions.reaction_runner import Reactions

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

_LONG_S: Final = 0.02
_REST: Final = 4


class Reports:
    """What a server says about itself, on any thread: its figures, its health, and its metrics as Prometheus reads them.

    It exists before the features that it reports, because STATS is answered from it: `add` names them.
    """

    def __init__(
        self, healthy: Callable[[], bool], reactions: Reactions | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`reactions`: why they fail has a figure of its own."""
        self._healthy, self._clock = healthy, clock
        self._text, self._text_until, self._text_lock = b"", -math.inf, threading.Lock()
        self._reactions = reactions
        self._attentive: tuple[Callable[[], str | None], ...] = ()
        self._sources: list[MetricSource[Any]] = []
        self._collectors: list[LabelledCollector] = []

    def add(self, *features: Feature) -> None:
        """Reports these features. Of several that need an operator, `attention` is of the first."""
        for feature in features:
            self._sources += feature.metrics
            self._collectors += feature.collectors
        self._attentive += tuple(each.attention for each in features if each.attention is not None)

    def stats(self) -> StatValues:
        found = read_stats(self._sources)
        for attention in self._attentive:
            found["attention"] = found.get("attention") or attention()
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

    def application(self) -> WSGIApplication:
        """Returns what answers /metrics over HTTP."""
        from eventstore.server.exposition import application_of  # here: as in `metrics`

        return application_of(self._sources, self._collectors)

    def metrics(self) -> bytes:
        """Returns the text of /metrics. Where that takes long, as with the offsets of thousands of groups, it is made once for
        all who ask, and again after four times as long.
        """
        from eventstore.server.exposition import text_of  # here: 2 MB of libraries that most servers are never asked for

        with self._text_lock:
            if self._clock() >= self._text_until:
                began = time.thread_time()
                self._text = text_of(self._sources, self._collectors)
                took = time.thread_time() - began
                self._text_until = self._clock() + took * _REST if took > _LONG_S else -math.inf
            return self._text
