"""A server that keeps the keys of subjects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.server_thread import ServerThread

Serve: TypeAlias = Callable[..., ServerThread]


def master_key(folder: Path, name: str = "master.key") -> Path:
    """Writes a file with a new master key in front of those that it has."""
    path = folder / name
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{os.urandom(32).hex()}\n{before}")
    path.chmod(0o600)
    return path


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Returns a function that starts a server on `tmp_path/data`, with a master key."""
    with ExitStack() as stack:

        def started(folder: Path = tmp_path / "data", **settings: Any) -> ServerThread:
            key = tmp_path / "master.key"
            given = {"subject_key_file": str(key if key.exists() else master_key(tmp_path)), **settings}
            return stack.enter_context(ServerThread(folder, **given))

        yield started
