"""The alarms of a projector: on how far its table is behind, and on parked keys."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping

from eventstore.alarms.alarms import Alarms
from eventstore.alarms.figure import Figure
from eventstore.metrics import MetricSource
from eventstore.server.projection_watch import PROJECTION_METRICS, ProjectionWatch
from eventstore.server.prometheus import figures_of
from eventstore.settings.alarms import AlarmSettings


class ProjectorAlarms:
    """Rules on the figures of a projector. Rules on others, which a file of settings has for servers, never hold."""

    def __init__(self, settings: AlarmSettings, watch: ProjectionWatch) -> None:
        """Raises InvalidArgument: a rule or a way of delivery is wrong; names it."""
        self.alarms = Alarms(settings, None if settings.rules is None else _known_figures())
        self.alarms.source = f"projector {watch.projection.name} on {socket.gethostname()}"
        self.alarms.seen_by = ""  # a projector serves no requests
        self._sources = (MetricSource(PROJECTION_METRICS, lambda: watch),)

    async def run(self) -> None:
        """Evaluates until cancelled."""
        await self.alarms.run(self.figures)

    def figures(self, wanted: Collection[str]) -> Iterator[Figure]:
        """Returns the figures of these names that a projector has."""
        return figures_of(self._sources, (), wanted)


def _known_figures() -> Mapping[str, Collection[str]]:
    from eventstore.server.alarms.known_figures import KNOWN_FIGURES  # with all parts of a server: 20 MB

    return KNOWN_FIGURES
