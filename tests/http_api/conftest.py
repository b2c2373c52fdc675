"""Servers with the HTTP API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.http_api.asking import Api
from tests.server_thread import ServerThread

Serve = Callable[..., ServerThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers in threads; they stop with the test."""
    with ExitStack() as stack:
        yield lambda data=None, **settings: stack.enter_context(
            ServerThread(data or tmp_path / "data", **{"http": "127.0.0.1:0", "http_api": True, **settings})
        )


@pytest.fixture
def api(serve: Serve) -> Api:
    """A client of a server of its own."""
    return Api(serve())


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/ can be named as domains."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
