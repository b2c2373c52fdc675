"""A server loads what it uses, and not the libraries for files that it has not yet or for reports that nobody asks for."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from eventstore import ANY, NewEvent, blocking
from tests.logged_process import LoggedProcess
from tests.waiting import wait_until

LATER = {
    "numpy",
    "pydantic",
    "prometheus_client",
    "wsgiref",
    "tomllib",
    "http.server",
    "asyncio",
    "rich",
    "greenlet",
    "email",
    "argparse",
}
TELLS_MODULES = """
import os, signal, sys
def tell(*_):
    with open(sys.argv[1] + "~", "w") as told:
        print(*sys.modules, file=told)
    os.replace(sys.argv[1] + "~", sys.argv[1])

signal.signal(signal.SIGUSR1, tell)
from eventstore.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


def test_a_server_that_has_taken_its_first_event_has_loaded_none_of_what_it_needs_later(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    command = [
        sys.executable,
        "-c",
        TELLS_MODULES,
        str(modules),
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--listen",
        "127.0.0.1:0",
    ]
    with LoggedProcess([*command, "--log-format", "json"], tmp_path / "log", "serving") as server:
        with blocking.connect(server.address) as store:
            store.append("a", [NewEvent("Opened", {})], ANY)
        os.kill(server.pid, signal.SIGUSR1)
        wait_until(modules.exists, "it says what it has loaded")
    loaded = modules.read_text().split()
    assert "eventstore.server.serve" in loaded
    assert LATER.isdisjoint(loaded)
