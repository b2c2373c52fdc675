"""The alarms of a projector: on how far its tables are behind, on those that have failed, and on parked keys."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping

from eventstore.alarms.alarms import Alarms
from eventstore.alarms.figure import Figure
from eventstore.server.projection_watch import ProjectionWatches
from eventstore.server.prometheus import figures_of
from eventstore.settings.alarms import AlarmSettings


class ProjectorAlarms:
    """Rules on the figures of a projector. Rules on others, which a file of settings has for servers, never hold."""

    def __init__(self, settings: AlarmSettings, watches: ProjectionWatches) -> None:
        """Raises InvalidArgument: a rule or a way of delivery is wrong; names it."""
        self.alarms = Alarms(settings, None if settings.rules is None else _known_figures())
        names = list(watches.by_name)
        what = f"projector {names[0]}" if len(names) == 1 else f"projector of {len(names)} tables"
        self.alarms.source = f"{what} on {socket.gethostname()}"
        self.alarms.seen_by = ""  # a projector serves no requests
        self._feature = watches.feature

    async def run(self) -> None:
        """Evaluates until cancelled."""
        await self.alarms.run(self.figures)

    def figures(self, wanted: Collection[str]) -> Iterator[Figure]:
        """Returns the figures of these names that a projector has."""
        return figures_of(self._feature.metrics, self._feature.collectors, wanted)


def _known_figures() -> Mapping[str, Collection[str]]:
    from eventstore.server.alarms.known_figures import KNOWN_FIGURES  # with all parts of a server: 20 MB

    return KNOWN_FIGURES
