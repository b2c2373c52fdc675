"""How far the projections are that clients keep up to date, and the workers: as they say themselves, every few seconds.

The table of a projection is elsewhere, and so is what it has parked: the server knows what its projector tells it every few
seconds (NOTE_PROJECTION), and how old the event is by now that the projector has not folded. One that has left stays: a table
that nobody keeps up to date must not look like one that never was. It stays until the projection is told of by a new
connection, or is forgotten (FORGET_PROJECTION); `projections.json` has them over a restart of the server. The server knows as
many as a page has: with 16 of each of 1,000 connections, a page took the event loop 40 ms, and the figures another 90.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

import trio

from eventstore.chunks.documents import DocumentValue, Tree, read_tree, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import EventStoreError, InvalidArgument, Overloaded
from eventstore.fields import shown
from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric, Metric, MetricSource, gauge
from eventstore.protocol import encode_answer, encode_error
from eventstore.protocol.limits import INT64_MAX
from eventstore.protocol.reaction_info import ProjectionInfo, WantedPlace
from eventstore.protocol.reaction_requests import (
    PROJECTION_ROWS_MAX,
    AskWaits,
    EndProjection,
    ForgetProjection,
    ListProjections,
    NoteProjection,
    TellPlace,
    WaitProjection,
)
from eventstore.server.feature import Feature
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.store.projection_waits import ProjectionWaits, Wait

PROJECTIONS_MAX: Final = 256
"""Of a connection."""
_SAVED_S: Final = 60.0
_log: Final = logging.getLogger(__name__)
PROJECTION_SILENT: Final = LabelledMetric(
    "projection_silent_seconds",
    "gauge",
    "time since a projector or worker last said how far it is; it does so every few seconds",
    ("projection",),
)


class ProjectedLog(Protocol):
    @property
    def visible_sequence(self) -> int: ...


@dataclass(slots=True)
class _Told:
    """What a connection said last of a projection, and when. `connection`: None before the start of this server."""

    connection: ServerConnection | None
    host: str
    port: int
    request: NoteProjection
    heard_us: int

    @property
    def has_left(self) -> bool:
        return self.connection is None or self.connection.closed

    @property
    def saved(self) -> list[DocumentValue]:
        said = self.request
        return [said.projection, self.host, self.port, said.position, said.oldest_us, said.parked, self.heard_us]

    @classmethod
    def read(cls, saved: Any) -> Self:
        """Reads what `saved` has returned. Raises InvalidArgument."""
        match saved:
            case [str(name), str(host), int(port), int(position), int() | None as oldest_us, int(parked), int(heard_us)]:
                return cls(None, host, port, NoteProjection(name, position, oldest_us, parked), heard_us)
        raise InvalidArgument(f"{shown(saved)} is no projection", field="projections")

    def row(self, end: int, now_us: int) -> ProjectionInfo:
        """`end`: the last sequence of the log."""
        said, since_us = self.request, self.request.oldest_us
        if since_us is None and self.has_left and end > said.position:
            since_us = self.heard_us  # what came since may be for it: nobody looks
        lag = (0, 0) if since_us is None else (max(0, end - said.position), max(0, now_us - since_us))
        address = f"{self.host}:{self.port}"
        silent_us = max(0, now_us - self.heard_us)
        return ProjectionInfo(said.projection, address, said.position, *lag, said.parked, silent_us, self.has_left)


class _Bound:
    """A request that waits. Its connection cancels it when it closes, and UNSUBSCRIBE does."""

    __slots__ = ("_cancelled", "connection", "request_id", "wait")
    use = None
    light: ClassVar[bool] = True

    def __init__(self, connection: ServerConnection, request_id: int, cancelled: Callable[[_Bound], object]) -> None:
        self.connection, self.request_id = connection, request_id
        self.wait: Wait | None = None
        self._cancelled = cancelled
        connection.bind(request_id, self)

    def unbind(self) -> None:
        self.connection.unbind(self.request_id, self)

    def cancel(self) -> None:
        self._cancelled(self)


class ConnectedProjections:
    def __init__(self, gate: Gate, log: ProjectedLog, waits: ProjectionWaits, path: Path, files: Files | None = None) -> None:
        """`path`: of the document with those that are known, over a restart."""
        self._gate, self._log, self._waits = gate, log, waits
        self._path, self._files = path, files or OsFiles()
        self._told: dict[tuple[object, str], _Told] = {}
        self._changed = trio.Event()
        self.started_us = time.time_ns() // 1_000
        self._load()
        self.feature = Feature(
            routes={
                NoteProjection: self._note,
                ListProjections: self._list,
                ForgetProjection: self._forget,
                EndProjection: self._end,
                WaitProjection: self._wait,
                AskWaits: self._ask,
                TellPlace: self._tell,
            },
            metrics=[MetricSource(CONNECTED_PROJECTION_METRICS, lambda: self)],
            collectors=[_SilenceCollector(self)],
            run=self._run,
        )

    def _load(self) -> None:
        try:
            saved = read_tree(self._files, self._path).get("projections")
            for each in saved[:PROJECTION_ROWS_MAX] if isinstance(saved, list) else []:
                told = _Told.read(each)
                self._told[object(), told.request.projection] = told
        except FileNotFoundError:
            return
        except (EventStoreError, OSError) as error:  # nothing is lost but who had left before
            _log.warning("%s cannot be read: %s; projections that had left before are not listed", self._path, error)

    async def _run(self) -> None:
        """Saves who is known: at once if that changes, and how far they are every minute and at the end."""
        try:
            while True:
                with trio.move_on_after(_SAVED_S):
                    await self._changed.wait()
                self._changed = trio.Event()
                await self._save()
        finally:
            with trio.CancelScope(shield=True):
                await self._save()

    async def _save(self) -> None:
        saved: list[DocumentValue] = [each.saved for each in list(self._told.values())]
        tree: Tree = {"format": 1, "projections": saved}
        if not self._told and not self._files.exists(self._path):
            return
        try:
            await trio.to_thread.run_sync(write_document, self._files, self._path, tree)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error)

    def all(self) -> Iterator[ProjectionInfo]:
        """Yields them in any order, on any thread."""
        end, now_us = self._log.visible_sequence, time.time_ns() // 1_000
        for each in list(self._told.values()):
            yield each.row(end, now_us)

    def _note(self, connection: ServerConnection, request_id: int, request: NoteProjection) -> None:
        key = connection, request.projection
        if key not in self._told:
            if sum(each is connection for each, _ in self._told) >= PROJECTIONS_MAX:
                raise InvalidArgument(
                    f"this connection runs {PROJECTIONS_MAX} projections, the limit: use another one",
                    field="projection",
                    limit=PROJECTIONS_MAX,
                )
            self._make_room(connection, request.projection)
            self._changed.set()
        self._told[key] = _Told(connection, connection.host, connection.port, request, time.time_ns() // 1_000)
        connection.note_use(f"projects {request.projection}")
        self._gate.send(connection, encode_answer(request_id, NoteProjection, None))

    def _make_room(self, connection: ServerConnection, name: str) -> None:
        """Removes the one that left and that this one continues: of the same machine if there is one, else the longest silent
        one. Raises Overloaded.
        """
        left = [key for key, each in self._told.items() if each.has_left]
        before = [key for key in left if key[1] == name]
        before.sort(key=lambda key: (self._told[key].host != connection.host, self._told[key].heard_us))
        if not before and len(self._told) >= PROJECTION_ROWS_MAX:
            before = sorted(left, key=lambda key: self._told[key].heard_us)
        if before:
            del self._told[before[0]]
        elif len(self._told) >= PROJECTION_ROWS_MAX:
            raise Overloaded(f"{PROJECTION_ROWS_MAX} projections are known here, the limit", limit=PROJECTION_ROWS_MAX)

    def _list(self, connection: ServerConnection, request_id: int, request: ListProjections) -> None:
        found = nsmallest(request.skip + PROJECTION_ROWS_MAX, self.all())
        self._gate.send(connection, encode_answer(request_id, ListProjections, found[request.skip :]))

    def _forget(self, connection: ServerConnection, request_id: int, request: ForgetProjection) -> None:
        for key, each in list(self._told.items()):
            if key[1] == request.projection and (each.has_left or key[0] is connection):
                del self._told[key]
                self._changed.set()
        self._gate.send(connection, encode_answer(request_id, ForgetProjection, None))

    def _wait(self, connection: ServerConnection, request_id: int, request: WaitProjection) -> None:
        def cancelled(bound: _Bound) -> None:
            if bound.wait is not None:
                self._waits.cancel(bound.wait)

        def end(error: EventStoreError | None) -> None:
            bound.unbind()
            answer = encode_answer(request_id, WaitProjection, None) if error is None else encode_error(request_id, error)
            self._gate.send(connection, answer)

        bound = _Bound(connection, request_id, cancelled)
        sequence = self._log.visible_sequence if request.sequence is None else request.sequence
        try:
            bound.wait = self._waits.begin(request.projection, sequence, end)
        except EventStoreError:
            bound.unbind()
            raise

    def _ask(self, connection: ServerConnection, request_id: int, request: AskWaits) -> None:
        def cancelled(_: _Bound) -> None:
            self._waits.leave(request.projection, projector)

        def answer(number: int, sequence: int) -> None:
            bound.unbind()
            self._gate.send(connection, encode_answer(request_id, AskWaits, WantedPlace(number, sequence)))

        projector, bound = (connection, request.projector), _Bound(connection, request_id, cancelled)
        try:
            self._waits.ask(request.projection, projector, request.number, answer, lambda: connection.closed)
        except EventStoreError:
            bound.unbind()
            raise

    def _tell(self, connection: ServerConnection, request_id: int, request: TellPlace) -> None:
        projector = connection, request.projector
        self._waits.tell(request.projection, projector, request.number, request.position)
        self._gate.send(connection, encode_answer(request_id, TellPlace, None))

    def moved(self, error: EventStoreError) -> None:
        """Ends all waits: the shard was split, and some of what they wait for is another one's."""
        self._waits.end_all(error)
        self._gate.flush()

    def _end(self, connection: ServerConnection, request_id: int, request: EndProjection) -> None:
        if self._told.pop((connection, request.projection), None) is not None:
            self._changed.set()
        self._gate.send(connection, encode_answer(request_id, EndProjection, None))

    def silences(self) -> dict[str, int]:
        """Returns for how many microseconds this server has not been told of each projection; of several of a name, the longest
        silence. On any thread.
        """
        now_us, silent = time.time_ns() // 1_000, dict[str, int]()
        for each in list(self._told.values()):
            since_us = each.heard_us if each.connection is not None else max(each.heard_us, self.started_us)
            name = each.request.projection
            silent[name] = max(silent.get(name, 0), now_us - since_us)
        return silent


class _SilenceCollector(LabelledCollector):
    """Exports how long ago each projection was told of, since the start."""

    declared = (PROJECTION_SILENT,)

    def __init__(self, projections: ConnectedProjections) -> None:
        self._projections = projections

    def collect(self) -> Iterator[LabelledFigures]:
        family = LabelledFigures(PROJECTION_SILENT)
        for name, microseconds in sorted(self._projections.silences().items()):
            family.add([name], microseconds / 1_000_000)
        yield family


CONNECTED_PROJECTION_METRICS: Final[tuple[Metric[ConnectedProjections], ...]] = (
    gauge(
        "projections",
        "projections that connected clients keep up to date, and workers",
        lambda found: sum(not each.has_left for each in found.all()),
    ),
    gauge(
        "projections_left",
        "projections and workers that have left",
        lambda found: sum(each.has_left for each in found.all()),
        "it is not 0: `eventstore projections` names them; start them again, or `--forget` them",
    ),
    gauge(
        "projections_parked_keys",
        "keys that they have parked",
        lambda found: min(INT64_MAX, sum(each.parked for each in found.all())),  # clients say how many
        "it is not 0: mend the projection, then `eventstore project … --retry-parked`",
    ),
    gauge(
        "projections_lag_microseconds",
        "age of the oldest event that one of their tables lacks; 0: none",
        lambda found: max((each.lag_microseconds for each in found.all()), default=0),
        "it grows: a projector or its database is slow, or stuck",
    ),
)
