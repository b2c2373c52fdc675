"""`eventstore new` writes a project whose tests pass, and `eventstore dev` serves it while it changes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import eventstore as es
from eventstore.commands import RawCommand
from tests.cli.processes import run
from tests.examples import EXAMPLES
from tests.ports import free_port
from tests.waiting import wait_until

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTSTORE_", "PYTEST_", "PYTHON"))}


def made(tmp_path: Path, name: str = "tea_shop") -> Path:
    assert run("new", tmp_path / name).returncode == 0
    return tmp_path / name


@pytest.mark.heavy
def test_a_new_project_passes_its_tests_and_is_formatted(tmp_path: Path) -> None:
    folder = made(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "eventstore.pytest_plugin"]
    done = subprocess.run(command, cwd=folder, env=CLEAN, capture_output=True, text=True, timeout=200, check=False)
    assert "4 passed" in done.stdout, done.stdout
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "README.md", "api.py", "pyproject.toml", "read_model.py", "tea_shop.py", "test_tea_shop.py",
    ]  # fmt: skip
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "."], cwd=folder, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("tea shop", "is not the name of a module"), ("class", "is not the name"), ("json", "is a module already"),
     ("api", "is a module already"), ("full", "exists, and is not empty")],
)  # fmt: skip
def test_a_folder_that_cannot_be_is_refused_and_nothing_is_written(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    done = run("new", tmp_path / name)
    assert done.returncode == 2
    assert words in done.stderr
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["full", "full/mine"]


@pytest.mark.heavy
def test_dev_starts_again_with_changed_code_and_waits_for_code_that_loads(tmp_path: Path) -> None:
    folder, port = made(tmp_path), free_port()
    log, code = tmp_path / "log", folder / "tea_shop.py"
    good = code.read_text()
    command = [
        sys.executable,
        "-m",
        "eventstore",
        "dev",
        "tea_shop:app",
        "--listen",
        f"127.0.0.1:{port}",
        "--http",
        "127.0.0.1:0",
    ]
    from_project = {**CLEAN, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parents[1]), str(EXAMPLES.parents[1] / "mailbox")])}
    with open(log, "wb") as output:
        dev = subprocess.Popen(command, cwd=folder, env=from_project, stdout=output, stderr=output)
    try:
        wait_until(lambda: "serving" in log.read_text() or dev.poll() is not None, "it serves")
        with es.blocking.connect(f"tcp://127.0.0.1:{port}", reconnect_timeout=60, timeout=120) as store:
            wait_until(lambda: _sent(store, "o-1", 450) == "version 1", "the first order is placed")
            wait_until(lambda: _sent(store, "o-2", 0) == "an order costs something", "the second is not")
            code.write_text(good.replace("command.cents <= 0", "command.cents < 0"))
            wait_until(lambda: "changed: tea_shop.py; starting again" in log.read_text(), "it starts again")
            wait_until(lambda: _sent(store, "o-3", 0) == "version 1", "the new rule holds")
            wait_until(lambda: _sent(store, "o-1", 450) == "this order was placed before", "events stay")
            code.write_text(good + "\n)")
            wait_until(lambda: "it starts again when a file changes" in log.read_text(), "it waits")
            code.write_text(good)
            wait_until(lambda: _sent(store, "o-4", 0) == "an order costs something", "the old rule holds again")
    finally:
        dev.terminate()
        assert dev.wait(60) == 0, log.read_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


def _sent(store: es.blocking.BlockingStore, order: str, cents: int) -> str:
    """Sends an order, and returns what became of it."""
    payload = json.dumps({"order": order, "item": "tea", "cents": cents}).encode()
    try:
        return f"version {store.send(RawCommand('Place', order, payload)).version}"  # type: ignore[union-attr]
    except (es.Rejected, es.TimedOut, es.ConnectionLost) as error:
        return error.message
