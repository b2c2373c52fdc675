"""The `eventsourcing` library on SQLite: embedded in the process, no server and no socket between caller and file.

SQLite runs in WAL mode with synchronous=FULL, its default, which syncs the log at every commit; `start` looks that up.

Not covered: it has no command id, so nothing is deduplicated; the primary key refuses a version that is
taken, not one that leaves a gap. It has no clients, so the workloads of many clients are left out.
"""

from __future__ import annotations

import sqlite3
from importlib.metadata import version

from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from benchmarks.harness.recorder import Recorded
from benchmarks.harness.subject import Unavailable
from benchmarks.peers import Scratch

SYNCHRONOUS_FULL = 2


class EventsourcingSQLite(Recorded):
    name = "eventsourcing + SQLite"
    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.version = f"{version('eventsourcing')} + {sqlite3.sqlite_version}"
        self._scratch: Scratch | None = None
        self._datastore: SQLiteDatastore | None = None

    def start(self) -> None:
        self._scratch = Scratch("eventsourcing")
        self._datastore = datastore = SQLiteDatastore(str(self._scratch.path / "events.db"), originator_id_type="text")
        recorder = SQLiteApplicationRecorder(datastore)
        recorder.create_table()
        self.opened = recorder
        with datastore.transaction(commit=False) as cursor:
            cursor.execute("PRAGMA synchronous")
            level = cursor.fetchone()[0]
        if level < SYNCHRONOUS_FULL:
            raise Unavailable(f"this SQLite was built to run with synchronous={level}: its appends are not durable")

    def stop(self) -> None:
        if self._datastore is not None:
            self._datastore.close()
        if self._scratch is not None:
            self._scratch.remove()
