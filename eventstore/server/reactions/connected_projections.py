"""How far the projections are that clients keep up to date: as they say themselves, each while it is connected.

The table of a projection is elsewhere, and so is what it has parked: the server knows what its projector tells it every few
seconds (NOTE_PROJECTION), and how old the event is by now that the projector has not folded. It knows as many as a page has:
with 16 of each of 1,000 connections, a page took the event loop 40 ms, and the figures another 90.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final, Protocol

from eventstore.errors import InvalidArgument, Overloaded
from eventstore.metrics import Metric, MetricSource, gauge
from eventstore.protocol import encode_answer
from eventstore.protocol.reaction_info import ProjectionInfo
from eventstore.protocol.reaction_requests import PROJECTION_ROWS_MAX, ListProjections, NoteProjection
from eventstore.server.feature import Feature
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

PROJECTIONS_MAX: Final = 16
"""Of a connection."""


class ProjectedLog(Protocol):
    @property
    def visible_sequence(self) -> int: ...


class ConnectedProjections:
    def __init__(self, gate: Gate, log: ProjectedLog) -> None:
        self._gate, self._log = gate, log
        self._noted: dict[ServerConnection, dict[str, NoteProjection]] = {}
        self.feature = Feature(
            routes={NoteProjection: self._note, ListProjections: self._list},
            metrics=[MetricSource(CONNECTED_PROJECTION_METRICS, lambda: self)],
        )

    @property
    def _count(self) -> int:
        return sum(len(noted) for connection, noted in self._noted.items() if not connection.closed)

    def all(self) -> Iterator[ProjectionInfo]:
        """Yields them in any order, on any thread."""
        end, now = self._log.visible_sequence, time.time_ns() // 1_000
        for connection, noted in list(self._noted.items()):
            for each in () if connection.closed else list(noted.values()):
                lag = (0, 0) if each.oldest_us is None else (max(0, end - each.position), max(0, now - each.oldest_us))
                address = f"{connection.host}:{connection.port}"
                yield ProjectionInfo(each.projection, address, each.position, *lag, each.parked)

    def _note(self, connection: ServerConnection, request_id: int, request: NoteProjection) -> None:
        noted = self._noted.get(connection)
        if noted is None:
            self._noted = {each: said for each, said in self._noted.items() if not each.closed}
            noted = self._noted[connection] = {}
        if request.projection not in noted and self._count >= PROJECTION_ROWS_MAX:
            raise Overloaded(f"{PROJECTION_ROWS_MAX} projections are known here, the limit", limit=PROJECTION_ROWS_MAX)
        if request.projection not in noted and len(noted) >= PROJECTIONS_MAX:
            raise InvalidArgument(
                f"this connection runs {PROJECTIONS_MAX} projections, the limit: use another one",
                field="projection",
                limit=PROJECTIONS_MAX,
            )
        noted[request.projection] = request
        connection.note_use(f"projects {request.projection}")
        self._gate.send(connection, encode_answer(request_id, NoteProjection, None))

    def _list(self, connection: ServerConnection, request_id: int, request: ListProjections) -> None:
        found = nsmallest(request.skip + PROJECTION_ROWS_MAX, self.all())
        self._gate.send(connection, encode_answer(request_id, ListProjections, found[request.skip :]))


CONNECTED_PROJECTION_METRICS: Final[tuple[Metric[ConnectedProjections], ...]] = (
    gauge("projections", "projections that connected clients keep up to date", lambda found: sum(1 for _ in found.all())),
    gauge(
        "projections_parked_keys",
        "keys that they have parked",
        lambda found: sum(each.parked for each in found.all()),
        "it is not 0: mend the projection, then `eventstore project … --retry-parked`",
    ),
    gauge(
        "projections_lag_microseconds",
        "age of the oldest event that one of their tables lacks; 0: none",
        lambda found: max((each.lag_microseconds for each in found.all()), default=0),
        "it grows: a projector or its database is slow, or stuck",
    ),
)
