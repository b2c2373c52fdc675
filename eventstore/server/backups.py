"""What a server has to do for backups: say up to where its files count, and remember when the last one was made.

The files are copied by another process. It says when a backup is whole (NOTE_BACKUP), so that one that is not made any more is
noticed. `backups.json` has that over a restart of the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.documents import Tree, read_tree, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import EventStoreError, Overloaded
from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric, Metric, MetricSource, gauge
from eventstore.protocol import encode_answer
from eventstore.protocol.backup_requests import BeginBackup, NoteBackup
from eventstore.protocol.server_info import BackupCut
from eventstore.server.feature import Feature
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

BACKUPS: Final = "backups.json"
PLACES_MAX: Final = 100
BACKUP_AGE: Final = LabelledMetric(
    "backup_age_seconds", "gauge", "time since the cut of the newest whole backup in a place was taken", ("place",)
)
_log: Final = logging.getLogger(__name__)


class Backups:
    """`taken`: when the cut of the newest whole backup was taken, by place, µs since 1970."""

    def __init__(self, gate: Gate, cut: Callable[[], BackupCut], path: Path, files: Files | None = None) -> None:
        """`cut`: returns up to where the store is readable now. `path`: of the document."""
        self._gate, self._cut = gate, cut
        self._path, self._files = path, files or OsFiles()
        self.taken = dict[str, int]()
        self._changed = trio.Event()
        self._load()
        self.feature = Feature(
            routes={BeginBackup: self._begin, NoteBackup: self._note},
            metrics=[MetricSource(BACKUP_METRICS, lambda: self)],
            collectors=[_AgeCollector(self)],
            run=self._run,
        )

    def _load(self) -> None:
        try:
            saved = read_tree(self._files, self._path).get("taken")
        except FileNotFoundError:
            return
        except (EventStoreError, OSError) as error:  # the next backup is noted again
            _log.warning("%s cannot be read: %s; how old backups are is not known until the next one", self._path, error)
            return
        found = saved.items() if isinstance(saved, dict) else ()
        self.taken = {place: taken for place, taken in list(found)[:PLACES_MAX] if isinstance(taken, int)}

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            tree: Tree = {"format": 1, "taken": dict(self.taken)}
            try:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(write_document, self._files, self._path, tree)
            except OSError as error:
                _log.warning("%s cannot be written: %s", self._path, error)

    def _begin(self, connection: ServerConnection, request_id: int, request: BeginBackup) -> None:
        self._gate.send(connection, encode_answer(request_id, BeginBackup, [self._cut()]))

    def _note(self, connection: ServerConnection, request_id: int, request: NoteBackup) -> None:
        if request.taken_us is None:
            self.taken.pop(request.place, None)
        elif request.place not in self.taken and len(self.taken) >= PLACES_MAX:
            raise Overloaded(f"{PLACES_MAX} places with backups are known here, the limit", limit=PLACES_MAX)
        else:
            self.taken[request.place] = max(request.taken_us, self.taken.get(request.place, 0))
        self._changed.set()
        self._gate.send(connection, encode_answer(request_id, NoteBackup, None))

    def ages(self) -> dict[str, float]:
        """Returns how old the newest backup in each place is, in seconds. On any thread."""
        now_us = time.time_ns() // 1_000
        return {place: max(0, now_us - taken) / 1e6 for place, taken in list(self.taken.items())}


class _AgeCollector(LabelledCollector):
    """Exports the age of the newest backup in each place."""

    declared = (BACKUP_AGE,)

    def __init__(self, backups: Backups) -> None:
        self._backups = backups

    def collect(self) -> Iterator[LabelledFigures]:
        family = LabelledFigures(BACKUP_AGE)
        for place, seconds in sorted(self._backups.ages().items()):
            family.add([place], seconds)
        yield family


BACKUP_METRICS: Final[tuple[Metric[Backups], ...]] = (
    gauge("backups", "places into which backups are made", lambda found: len(found.taken)),
)
