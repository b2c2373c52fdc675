"""Servers with a console, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server_thread import ServerThread

Serve = Callable[..., ServerThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers in threads; they stop with the test."""
    with ExitStack() as stack:
        yield lambda data=None, **settings: stack.enter_context(
            ServerThread(data or tmp_path / "data", **{"http": "127.0.0.1:0", **settings})
        )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """One server for the tests of a module."""
    with ServerThread(tmp_path_factory.mktemp("console") / "data", http="127.0.0.1:0") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium, for a module: while it is open, asyncio runs in its thread, and no other test can run it there."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()
