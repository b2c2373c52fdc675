"""A plugin for pytest: a server for the tests, a domain in it, projections brought up to date, and a wait without sleeping.

It is found by pytest where the package is installed, and imports nothing of it until a fixture is used. Settings, in
`[tool.pytest.ini_options]`: `eventstore_domain` and `eventstore_env`; docs/FRAMEWORKS.md, "pytest", shows both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from eventstore.blocking import BlockingStore
    from eventstore.domain.projections.projection import Projection
    from eventstore.domain.projections.targets.base import Target

T = TypeVar("T")
_DEADLINE_S: Final = 30.0
_TICK_S: Final = 0.01
_SMALL: Final = {"preallocate_bytes": 1_048_576, "broker_preallocate_bytes": 1_048_576}
_SERVER: Final = pytest.StashKey["EventStoreServer"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("eventstore_domain", "MODULE:NAME of the domain in the server of the tests; none unless given", default="")
    parser.addini(
        "eventstore_env",
        "environment variable that gets the server's address before tests are imported, for a client at the top of a module",
        default="",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Starts the server before modules are imported that read its address, in each process that runs tests."""
    config = session.config
    name, distributes = config.getini("eventstore_env"), config.getoption("numprocesses", None)
    if name and (not distributes or hasattr(config, "workerinput")) and not config.getoption("collectonly"):
        os.environ[name] = _server_of(config).address


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(_SERVER, None)
    if server is not None:
        server.close()


class EventStoreServer:
    """`eventstore serve` on a folder of its own, in a process of its own.

    `domain`: `module:name`, found as the tests find it; `settings`: as of `eventstore serve --set`. `address`: where it
    listens. `store`: a blocking client, opened at its first use and closed with the server.
    """

    def __init__(self, folder: Path, domain: str = "", settings: Mapping[str, object] = {}) -> None:
        self.data = folder / "data"
        self._log = folder / "server.log"
        self._options = [f"--set={name}={_written(value)}" for name, value in {**_SMALL, **settings}.items()]
        if domain:
            self._options += ["--domain", domain]
        self._process: subprocess.Popen[bytes] | None = None
        self._client: BlockingStore | None = None
        self._listen = "127.0.0.1:0"
        self.address = ""
        self.start()

    @property
    def store(self) -> BlockingStore:
        from eventstore import blocking

        if self._client is None:
            self._client = blocking.connect(self.address)
        return self._client

    def start(self) -> None:
        """Starts the server, where it listened before, on the data that it had. Raises RuntimeError with its log if it ends."""
        command = [sys.executable, "-m", "eventstore", "serve", "--data", str(self.data), "--listen", self._listen]
        path = os.pathsep.join(["", *filter(None, sys.path)])  # modules are found as the tests find them
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--log-format", "json", *self._options],
                env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            eventually(lambda: self._said("serving") or self._ended(), timeout=_DEADLINE_S)
        except BaseException:
            self.kill()
            raise
        said = self._said("serving")
        if said is None:
            raise RuntimeError(f"the server has ended: {self.log}")
        self.address = str(said["address"])
        self._listen = self.address.partition("://")[2]

    def stop(self) -> None:
        """Stops the server in order."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """Kills the server, as a crash of its process does. What was acknowledged is there after `start`."""
        self._end(subprocess.Popen.kill)

    def close(self) -> None:
        """Closes `store`, and stops the server."""
        if self._client is not None:
            self._client.close()
        self.stop()

    @property
    def log(self) -> str:
        """What the server has logged since it was started last: a JSON object on each line."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is not None:
            how(process)
            try:
                process.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _said(self, event: str) -> dict[str, Any] | None:
        for line in self.log.splitlines():
            if line.startswith("{") and line.endswith("}"):
                said: dict[str, Any] = json.loads(line)
                if said.get("event") == event:
                    return said
        return None


class Projector:
    """A projection into a table. `target`: where the table is."""

    def __init__(self, address: str, projection: Projection[Any], target: Target, path: Path | None) -> None:
        self.target = target
        self._address = address
        self._projection = projection
        self._path = path

    def catch_up(self) -> int:
        """Brings the table up to date with the store; returns the sequence up to which it is."""
        import trio

        import eventstore as es
        from eventstore.domain.projections.projector import project

        async def run() -> int:
            async with es.connect(self._address, timeout=_DEADLINE_S) as store:
                return await project(store, self._projection, self.target, until_caught_up=True)

        return trio.run(run)

    def rows(self) -> dict[str, dict[str, object]]:
        """Brings the table up to date and returns its rows, by key; of a table in SQLite that the fixture has made."""
        import sqlite3

        if self._path is None:
            raise RuntimeError("this projector has a target of its own; read the table there after catch_up()")
        self.catch_up()
        connection = sqlite3.connect(self._path)
        try:
            connection.row_factory = sqlite3.Row
            names = ", ".join(f'"{name}"' for name in ("key", *self._projection.columns))
            found = connection.execute(f'SELECT {names} FROM "{self._projection.name}"').fetchall()
        finally:
            connection.close()
        return {row["key"]: {name: row[name] for name in self._projection.columns} for row in found}


def eventually(check: Callable[[], T], timeout: float = 10.0) -> T:
    """Calls `check` until it returns something true, and returns that; an AssertionError in it means: not yet.

    Raises:
        AssertionError: it did not within `timeout` seconds; the last one of `check`, if it raised one.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            found, failed = check(), None
        except AssertionError as error:
            failed = error
        else:
            if found:
                return found
        if time.monotonic() >= deadline:
            raise failed or AssertionError(f"not within {timeout:g} s: the check returned {found!r}")
        time.sleep(_TICK_S)


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _server_of(config: pytest.Config) -> EventStoreServer:
    """Returns the server of this process's tests; starts it at the first call."""
    server = config.stash.get(_SERVER, None)
    if server is None:
        import tempfile

        folder = tempfile.TemporaryDirectory(prefix="eventstore-pytest-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        server = config.stash[_SERVER] = EventStoreServer(Path(folder.name), config.getini("eventstore_domain"))
    return server


@pytest.fixture(scope="session")
def eventstore_server(pytestconfig: pytest.Config) -> EventStoreServer:
    """The server that all tests share, with the domain of the setting `eventstore_domain`; each test uses ids of its own."""
    return _server_of(pytestconfig)


@pytest.fixture(scope="session")
def eventstore_client(eventstore_server: EventStoreServer) -> BlockingStore:
    """A blocking client of that server."""
    return eventstore_server.store


@pytest.fixture
def eventstore_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EventStoreServer]]:
    """Starts servers of the test's own, which end with it: `eventstore_serve(domain="orders:app", broker=False)`."""
    with ExitStack() as stack:

        def serve(domain: str = "", **settings: object) -> EventStoreServer:
            server = EventStoreServer(tmp_path_factory.mktemp("eventstore"), domain, settings)
            stack.callback(server.close)
            return server

        yield serve


@pytest.fixture
def eventstore_projector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Projector]:
    """Makes projectors of the shared server, or of another `server`: `eventstore_projector(Balances())`, into SQLite unless a
    `target` is given.
    """

    def make(projection: Projection[Any], target: Target | None = None, server: EventStoreServer | None = None) -> Projector:
        from eventstore.domain.projections.targets.sqlite import SQLiteTarget

        address = (server or request.getfixturevalue("eventstore_server")).address
        if target is not None:
            return Projector(address, projection, target, None)
        path = tmp_path_factory.mktemp("projection") / "read.db"
        return Projector(address, projection, SQLiteTarget(path), path)

    return make


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Any]:
    """Waits until a check holds: `eventually(lambda: store.version("o-1") == 2)`. See `eventstore.pytest_plugin.eventually`."""
    return eventually
