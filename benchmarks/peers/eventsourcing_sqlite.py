"""The `eventsourcing` library on SQLite: embedded in the process, no server and no socket between caller and file.

SQLite runs in WAL mode with synchronous=FULL, its default, which syncs the log at every commit; `start` looks that up.
The recorder is called directly with stored events: an application on top of it pays for encoding as well.

Not covered: it has no command id, so nothing is deduplicated; the primary key refuses a version that is
taken, not one that leaves a gap. It has no clients, so the workloads of many clients are left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from importlib.metadata import version

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from benchmarks.harness.subject import (
    EVENT_TYPE,
    PAYLOAD,
    READ_AGGREGATE,
    Run,
    Unavailable,
    append_workloads,
    fill_through,
    passes,
    replays,
)
from benchmarks.peers import Scratch

SINGLE_CLIENT = ("append_lockstep_1", "append_batch_100")
READ_ALL_ROWS_PER_CALL = 5000
SYNCHRONOUS_FULL = 2


class _Client:
    def __init__(self, recorder: SQLiteApplicationRecorder) -> None:
        self._recorder = recorder

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        places = range(expected + 1, expected + events + 1)
        self._recorder.insert_events([StoredEvent(aggregate_id, place, EVENT_TYPE, PAYLOAD) for place in places])
        return expected + events


class EventsourcingSQLite:
    name = "eventsourcing + SQLite"
    durable = True

    def __init__(self) -> None:
        self.version = f"{version('eventsourcing')} + {sqlite3.sqlite_version}"
        self._scratch: Scratch | None = None
        self._opened: SQLiteApplicationRecorder | None = None
        self._events_filled = 0

    def start(self) -> None:
        self._scratch = Scratch("eventsourcing")
        datastore = SQLiteDatastore(str(self._scratch.path / "events.db"), originator_id_type="text")
        self._opened = SQLiteApplicationRecorder(datastore)
        self._opened.create_table()
        with datastore.transaction(commit=False) as cursor:
            cursor.execute("PRAGMA synchronous")
            level = cursor.fetchone()[0]
        if level < SYNCHRONOUS_FULL:
            raise Unavailable(f"this SQLite was built to run with synchronous={level}: its appends are not durable")

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.datastore.close()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        appends = append_workloads(lambda _clients: [_Client(self._recorder)])
        return {
            **{name: appends[name] for name in SINGLE_CLIENT},
            "read_aggregate_100": replays(self._replay),
            "read_all": passes(self._read_all, self._events_filled),
        }

    def fill(self, events: int) -> None:
        fill_through(_Client(self._recorder), events)
        self._events_filled = events

    @property
    def _recorder(self) -> SQLiteApplicationRecorder:
        assert self._opened is not None, "start() comes first"
        return self._opened

    def _replay(self) -> int:
        return len(self._recorder.select_events(READ_AGGREGATE))

    def _read_all(self) -> int:
        seen, last = 0, 0
        for _ in range(self._events_filled // READ_ALL_ROWS_PER_CALL + 1):
            page = self._recorder.select_notifications(last, READ_ALL_ROWS_PER_CALL, inclusive_of_start=False)
            if not page:
                break
            seen, last = seen + len(page), page[-1].id
        return seen
