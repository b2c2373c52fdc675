"""A program that eventlet has patched is refused the blocking client by name, and told what to use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import eventlet.patcher
import eventstore as es

try:
    if AFTER:
        es.blocking
    eventlet.patcher.patched.update(PATCHED)
    es.blocking.connect("tcp://127.0.0.1:9", reconnect_timeout=0).version("a")
except ImportError as error:
    print(error)
except es.ConnectionLost:
    pass
"""
PATCHER = """
patched = {}


def is_monkey_patched(module):
    return module in patched
"""  # what is asked of eventlet, which is not installed here: it has had this function since 0.9, and still in 0.41.3


@pytest.mark.parametrize("after", [False, True], ids=["before the import", "after the import"])
@pytest.mark.parametrize("patched", ["socket", "thread", "select", None])
def test_the_blocking_client_is_refused_if_eventlet_has_patched_what_it_waits_for(
    patched: str | None, after: bool, tmp_path: Path
) -> None:
    (tmp_path / "eventlet").mkdir()
    (tmp_path / "eventlet" / "__init__.py").touch()
    (tmp_path / "eventlet" / "patcher.py").write_text(PATCHER)
    program = PROGRAM.replace("PATCHED", repr({} if patched is None else {patched: True})).replace("AFTER", repr(after))
    (tmp_path / "program.py").write_text(program)
    said = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    if patched is None:
        assert said == ""
    else:
        assert said.startswith("eventlet has replaced sockets or threads in this process")
        assert "--worker-class gevent" in said
