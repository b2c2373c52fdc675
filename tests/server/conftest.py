"""Servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.examples import EXAMPLES
from tests.server.commands.domain_hosts import KINDS, DomainHost
from tests.server.commands.tallies import gates
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread

Serve = Callable[..., ServerThread]
Launch = Callable[..., ServerProcess]
Begin = Callable[..., DomainHost]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers in threads; they stop with the test."""
    with ExitStack() as stack:
        yield lambda data=None, **settings: stack.enter_context(ServerThread(data or tmp_path / "data", **settings))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts server processes; they are killed at the end of the test."""
    with ExitStack() as stack:

        def begin(data: Path | None = None, **settings: Any) -> ServerProcess:
            return stack.enter_context(ServerProcess(data or tmp_path / "data", **settings))

        yield begin


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """One server for all tests of a module that do not affect each other."""
    with ServerThread(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server


@pytest.fixture(params=KINDS)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., DomainHost]]:
    """Runs a domain: once in the server of a store, and in another run of the test in a worker."""
    gates.clear()
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(DomainHost(request.param, tmp_path, **settings))


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets processes import the domains of the documentation."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
