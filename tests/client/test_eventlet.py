"""A program that eventlet has patched is refused the blocking client by name, and told what to use."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("eventlet") is None, reason="eventlet is not installed")

CALLED = """
try:
    es.blocking.connect("tcp://127.0.0.1:9", reconnect_timeout=0).version("a")
except es.ConnectionLost as error:
    print(f"not refused: {error}")
"""
LOADED = "import eventstore as es; es.blocking"


def said(*lines: str) -> tuple[int, str]:
    """Runs a program; returns its exit code, and the last line that it has printed or failed with."""
    program = "\n".join(("import eventlet", *lines))
    # Its own resolver of names imports trio, if httpcore2 is installed, which it then has patched too far for trio.
    environment = {**os.environ, "EVENTLET_NO_GREENDNS": "yes"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout or done.stderr).splitlines()[-1]


def is_refused(done: tuple[int, str]) -> bool:
    code, line = done
    begins = "ImportError: eventlet has replaced sockets or threads in this process"
    return code == 1 and line.startswith(begins) and "--worker-class gevent" in line


def test_the_blocking_client_is_refused_as_it_is_imported_after_a_patch() -> None:
    assert is_refused(said("eventlet.monkey_patch()", "import eventstore.blocking"))


@pytest.mark.parametrize("parts", ["", "all=False, socket=True", "all=False, thread=True", "all=False, select=True"])
def test_the_blocking_client_is_refused_at_its_first_call_if_it_was_imported_before_the_patch(parts: str) -> None:
    assert is_refused(said(LOADED, f"eventlet.monkey_patch({parts})", CALLED))


def test_the_blocking_client_works_beside_eventlet_that_has_patched_nothing_that_it_waits_by() -> None:
    code, line = said("eventlet.monkey_patch(all=False, time=True)", LOADED, CALLED)
    assert code == 0
    assert line.startswith("not refused: tcp://127.0.0.1:9")
