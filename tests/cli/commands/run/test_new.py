"""`eventstore new` writes a project whose tests pass, and `eventstore dev` serves it while it changes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
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
        "Containerfile", "README.md", "api.py", "compose.yml", "pyproject.toml", "read_model.py", "tea_shop.py",
        "test_tea_shop.py",
    ]  # fmt: skip
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "."], cwd=folder, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.heavy
def test_the_services_of_its_compose_file_work_together(tmp_path: Path) -> None:
    """Each with its own command, here as processes: only addresses and folders are those of this machine."""
    yaml = pytest.importorskip("yaml")
    folder, port, http, api = made(tmp_path), free_port(), free_port(), free_port()
    services = yaml.safe_load((folder / "compose.yml").read_text())["services"]
    here = {
        "0.0.0.0:7701": f"127.0.0.1:{port}", "0.0.0.0:7702": f"127.0.0.1:{http}", "0.0.0.0": "127.0.0.1", "8000": str(api),
        "tcp://store:7701": f"tcp://127.0.0.1:{port}", "/data": str(tmp_path / "data"), "/tables/orders.db": "orders.db",
        "sqlite:/tables/orders.db": "sqlite:orders.db",
    }  # fmt: skip
    path = os.pathsep.join([str(EXAMPLES.parents[1]), str(EXAMPLES.parents[1] / "mailbox"), str(folder)])
    started = list[subprocess.Popen[bytes]]()

    def begin(name: str) -> subprocess.Popen[bytes]:
        service = services[name]
        own = {key: here.get(value, value) for key, value in service.get("environment", {}).items()}
        command = [sys.executable, "-m", *(here.get(each, each) for each in service["command"])]
        with open(tmp_path / f"{name}.log", "wb") as log:
            environment = {**CLEAN, "PYTHONPATH": path, **own}
            started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log))
        return started[-1]

    try:
        begin("store")
        wait_until(lambda: "serving" in (tmp_path / "store.log").read_text(), "the store serves")
        begin("tables")
        begin("api")
        with es.blocking.connect(f"tcp://127.0.0.1:{port}", reconnect_timeout=60, timeout=120) as store:
            wait_until(lambda: _sent(store, "o-1", 450) == "version 1", "the store takes an order")
        address = f"http://127.0.0.1:{api}/orders"
        wait_until(lambda: _got(address) == [{"key": "o-1", "item": "tea", "cents": 450}], "the API shows its row")
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait(60)
    tests = begin("tests")
    assert tests.wait(200) == 0, (tmp_path / "tests.log").read_text()
    assert services["tests"]["profiles"] == ["tests"]


def _got(address: str) -> object:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


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
