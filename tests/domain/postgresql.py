"""A real PostgreSQL for the tests, on a free loopback port and its own folder."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

SECONDS_MAX = 60.0


def why_not() -> str | None:
    """Returns why no server can be started here; None if it can."""
    try:
        import psycopg  # noqa: F401 # only whether it is there
    except ImportError:
        return "psycopg is not installed"
    if _binary("initdb") is None or _binary("postgres") is None:
        return "PostgreSQL is not installed"
    if os.geteuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None


@contextmanager
def running_server() -> Iterator[str]:
    """Returns the address of an empty database."""
    import psycopg

    user, password = _unprivileged() if os.geteuid() == 0 else None, secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="eventstore-postgresql-") as name:
        folder = Path(name)
        (folder / "password").write_text(password)
        if user is not None:
            shutil.chown(folder, user)
            shutil.chown(folder / "password", user)
        _run(folder, user, "initdb", "--username", "tests", "--pwfile", "password", "--auth", "scram-sha-256", "--no-sync",
             "--encoding", "UTF8", "--locale", "C", "--pgdata", "data")  # fmt: skip
        port = _free_port()
        address = f"postgresql://tests:{password}@127.0.0.1:{port}/postgres"
        options = [
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            f"port={port}",
            "-c",
            "unix_socket_directories=",
            "-c",
            "fsync=off",
        ]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [str(_binary("postgres")), "-D", str(folder / "data"), *options], cwd=folder, user=user, stdout=log, stderr=log
            )
        try:

            def answers() -> bool:
                assert server.poll() is None, (folder / "log").read_text()
                try:
                    psycopg.connect(address, connect_timeout=5).close()
                except psycopg.OperationalError:
                    return False
                return True

            wait_until(answers, "PostgreSQL answers", SECONDS_MAX)
            yield address
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(SECONDS_MAX)


def _run(folder: Path, user: str | None, program: str, *arguments: str) -> None:
    subprocess.run(
        [str(_binary(program)), *arguments], cwd=folder, user=user, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS_MAX
    )


def _binary(name: str) -> Path | None:
    """Returns the folders of the programs, which Debian does not put on the PATH; the newest release first."""
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    found = [folder / name for folder in sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)]
    elsewhere = shutil.which(name)
    return next((path for path in found if path.exists()), Path(elsewhere) if elsewhere else None)


def _unprivileged() -> str | None:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
