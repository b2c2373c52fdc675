"""PostgreSQL as an event store: one table, the version and the command id guarded by unique indexes.

The server runs as shipped (fsync on, synchronous_commit on): an append is acknowledged after its commit record is
synced. One event goes in by a prepared INSERT, more by one binary COPY, the fastest way there is; each is one
transaction.

Not covered: the unique index refuses a version that is taken, not one that leaves a gap; a repeated command is
an error, not the first answer again; `seq` is assigned before the commit, so a reader that follows it while others
append can skip events for ever. Rows come back as plain tuples, psycopg's cheapest objects.
"""

from __future__ import annotations

import getpass
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg

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
from benchmarks.peers import Scratch, Server, executable, free_port

# The command id guards the commit, not each event: only the commit's first row is in that index.
SCHEMA = """
CREATE TABLE events (
    seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    aggregate_id text NOT NULL,
    version      integer NOT NULL,
    command_id   text NOT NULL,
    opens_commit boolean NOT NULL,
    type         text NOT NULL,
    data         bytea NOT NULL,
    recorded_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (aggregate_id, version)
);
CREATE UNIQUE INDEX events_command ON events (aggregate_id, command_id) WHERE opens_commit;
"""
COLUMNS = "aggregate_id, version, command_id, opens_commit, type, data"
COLUMN_TYPES = ["text", "int4", "text", "bool", "text", "bytea"]
INSERT = f"INSERT INTO events ({COLUMNS}) VALUES (%s, %s, %s, true, %s, %b)"
COPY = f"COPY events ({COLUMNS}) FROM STDIN (FORMAT binary)"
EVENT = "seq, aggregate_id, version, command_id, type, data, recorded_at"
REPLAY = f"SELECT {EVENT} FROM events WHERE aggregate_id = %s ORDER BY version"
READ_ALL = f"SELECT {EVENT} FROM events ORDER BY seq"
READ_ALL_ROWS_PER_FETCH = 5000


class _Client:
    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self.connection = connection
        self._cursor = connection.cursor()

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        command_id = uuid.uuid4().hex
        if events == 1:
            self._cursor.execute(INSERT, (aggregate_id, expected + 1, command_id, EVENT_TYPE, PAYLOAD), prepare=True)
            return expected + 1
        with self._cursor.copy(COPY) as copy:
            copy.set_types(COLUMN_TYPES)
            for place in range(1, events + 1):
                copy.write_row((aggregate_id, expected + place, command_id, place == 1, EVENT_TYPE, PAYLOAD))
        return expected + events


class PostgreSQL:
    name = "PostgreSQL"
    durable = True

    def __init__(self) -> None:
        self.version = "?"
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._clients: list[_Client] = []
        self._address = ""
        self._events_filled = 0

    def start(self) -> None:
        binaries = _newest_binaries()
        initdb = executable("initdb", *binaries, hint="apt-get install postgresql")
        postgres = executable("postgres", *binaries, hint="apt-get install postgresql")
        user = _unprivileged_user()
        self._scratch = Scratch("postgresql", owner=user)
        folder, password, port = self._scratch.path, secrets.token_hex(16), free_port()
        _initialise(initdb, folder, password, user)
        options = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        # An immediate shutdown: writing a last checkpoint into a folder about to be removed is time lost.
        self._server = Server([postgres, "-D", str(folder / "data"), *settings], folder, user=user, stop_signal=signal.SIGQUIT)
        self._address = f"host=127.0.0.1 port={port} dbname=postgres user=benchmark password={password}"
        self._server.wait_until_ready(self._create_table, (psycopg.OperationalError,))

    def _create_table(self) -> None:
        with psycopg.connect(self._address, autocommit=True, connect_timeout=5) as connection:
            connection.execute(SCHEMA)
            # The package's own number follows after a space.
            self.version = (connection.info.parameter_status("server_version") or "?").split()[0]

    def stop(self) -> None:
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {
            **append_workloads(self._connected),
            "read_aggregate_100": replays(self._replay),
            "read_all": passes(self._read_all, self._events_filled),
        }

    def fill(self, events: int) -> None:
        client = self._connected(1)[0]
        fill_through(client, events)
        client.connection.execute("VACUUM ANALYZE events")
        self._events_filled = events

    def _connected(self, clients: int) -> Sequence[_Client]:
        while len(self._clients) < clients:
            self._clients.append(_Client(psycopg.connect(self._address, autocommit=True)))
        return self._clients[:clients]

    def _replay(self) -> int:
        connection = self._connected(1)[0].connection
        return len(connection.execute(REPLAY, (READ_AGGREGATE,), prepare=True, binary=True).fetchall())

    def _read_all(self) -> int:
        connection = self._connected(1)[0].connection
        with connection.transaction(), connection.cursor("everything", binary=True) as cursor:
            cursor.itersize = READ_ALL_ROWS_PER_FETCH
            cursor.execute(READ_ALL)
            return sum(1 for _ in cursor)


def _newest_binaries() -> list[Path]:
    """Where Debian keeps them, away from the PATH; the newest release first."""
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    return sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)


def _unprivileged_user() -> str | None:
    """The server refuses to run as root; then it runs as the user that its package made."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise Unavailable(f"refuses to run as {getpass.getuser()}, and user 'postgres' does not exist") from None


def _initialise(initdb: str, folder: Path, password: str, user: str | None) -> None:
    """Create the database files. With a password, since a loopback port is open to every user of the machine."""
    password_file = folder / "password"
    password_file.write_text(password)
    if user is not None:
        shutil.chown(password_file, user)
    command = [initdb, "--pgdata", str(folder / "data"), "--username", "benchmark", "--pwfile", str(password_file)]
    command += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"]
    done = subprocess.run(command, cwd=folder, user=user, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise Unavailable(f"initdb ended with code {done.returncode}: {' '.join(done.stderr[-300:].split())}")
