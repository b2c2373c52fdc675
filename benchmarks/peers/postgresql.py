"""PostgreSQL as an event store: one table, the version and the command id guarded by unique indexes.

The server runs as shipped (fsync on, synchronous_commit on): an append is acknowledged after its commit record is
synced. One event goes in by a prepared INSERT, more by one binary COPY, the fastest way there is; each is one
transaction.

Not covered: the unique index refuses a version that is taken, not one that leaves a gap; a repeated command is
an error, not the first answer again; `seq` is assigned before the commit, so a reader that follows it while others
append can skip events for ever. Rows come back as plain tuples, psycopg's cheapest objects.

With a standby, a second server streams from it and is named in synchronous_standby_names: with synchronous_commit on, a
commit is acknowledged after both have synced it.
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
STANDBY = "standby"


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
    durable = True

    def __init__(self, standby: bool = False) -> None:
        self.name = "PostgreSQL with a synchronous standby" if standby else "PostgreSQL"
        self.version = "?"
        self._standby = standby
        self._scratches: list[Scratch] = []
        self._servers: list[Server] = []
        self._clients: list[_Client] = []
        self._address = ""
        self._events_filled = 0

    def start(self) -> None:
        initdb, password, port = _program("initdb"), secrets.token_hex(16), free_port()
        user = _unprivileged_user()
        folder = self._scratch("postgresql", user)
        _initialise(initdb, folder, password, user)
        self._address = f"host=127.0.0.1 port={port} dbname=postgres user=benchmark password={password}"
        settings = {"synchronous_standby_names": STANDBY, "synchronous_commit": "on"} if self._standby else {}
        primary = self._start_server(folder, port, user, **settings)
        primary.wait_until_ready(lambda: self._connect().close(), (psycopg.OperationalError,))
        if self._standby:
            self._start_standby(user)
        with self._connect() as connection:
            connection.execute(SCHEMA)
            # The package's own number follows after a space.
            self.version = (connection.info.parameter_status("server_version") or "?").split()[0]

    def _scratch(self, subject: str, user: str | None) -> Path:
        self._scratches.append(Scratch(subject, owner=user))
        return self._scratches[-1].path

    def _start_server(self, folder: Path, port: int, user: str | None, **more: str) -> Server:
        options = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **more}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [_program("postgres"), "-D", str(folder / "data"), *settings]
        # An immediate shutdown: writing a last checkpoint into a folder about to be removed is time lost.
        self._servers.append(Server(command, folder, user=user, stop_signal=signal.SIGQUIT))
        return self._servers[-1]

    def _start_standby(self, user: str | None) -> None:
        """Returns when the primary waits for the standby, before anything is committed."""
        folder = self._scratch("postgresql-standby", user)
        source = f"{self._address} application_name={STANDBY}"
        command = [_program("pg_basebackup"), "--pgdata", str(folder / "data"), "--write-recovery-conf", "--checkpoint=fast"]
        _run([*command, "--dbname", source], folder, user)
        self._start_server(folder, free_port(), user).wait_until_ready(self._check_standby, (Unavailable,))

    def _check_standby(self) -> None:
        with self._connect() as connection:
            found = connection.execute("SELECT application_name, sync_state FROM pg_stat_replication").fetchall()
        if (STANDBY, "sync") not in found:
            raise Unavailable(f"the standby is not synchronous: {found}")

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._address, autocommit=True, connect_timeout=5)

    def stop(self) -> None:
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        for server in self._servers:
            server.stop()
        for scratch in self._scratches:
            scratch.remove()

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
            self._clients.append(_Client(self._connect()))
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


def _program(name: str) -> str:
    """Returns its path; Debian keeps it away from the PATH. The newest release wins."""
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    newest = sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)
    return executable(name, *newest, hint="apt-get install postgresql")


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
    _run(command, folder, user)


def _run(command: Sequence[str], folder: Path, user: str | None) -> None:
    done = subprocess.run(command, cwd=folder, user=user, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        said = " ".join(done.stderr[-300:].split())
        raise Unavailable(f"{Path(command[0]).name} ended with code {done.returncode}: {said}")
