"""Ctrl-C at any moment of the start ends a command with exit code 130 and without a word."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.processes import ROOT, environment

# At each import of a module the process forks, and the child is interrupted there.
PROGRAM = """
import json, os, signal, sys, tempfile

first, run = sys.argv[1:3]
sys.argv[:] = [first, "--version"]
signal.signal(signal.SIGINT, signal.default_int_handler)
ends, begun, parent = [], False, os.getpid()


class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        global begun
        begun = begun or name == first
        if not begun or os.getpid() != parent:
            return None
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                os.kill(os.getpid(), signal.SIGINT)
                return None
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            ends.append((name, code, said.read().decode()))
        return None


sys.meta_path.insert(0, Interrupting)
try:
    exec(run)
except SystemExit as end:
    if os.getpid() != parent:
        raise
    print(json.dumps([end.code, ends]))
"""
STARTS = {
    "module": ("eventstore", "import runpy; runpy.run_module('eventstore', run_name='__main__', alter_sys=True)"),
    "script": ("eventstore.cli.start", "from eventstore.cli.start import main; main()"),
    "spark": ("pyspark_eventstore.start", "from pyspark_eventstore.start import main; main()"),
}


@pytest.mark.heavy
@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_at_any_import_ends_silently(start: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *STARTS[start]],
        cwd=ROOT, env=environment(), check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    code, ends = json.loads(result.stdout.splitlines()[-1])
    assert code == 0
    own = [name for name, *_ in ends if name.startswith(("eventstore.", "pyspark_eventstore."))]
    assert len(own) > 3
    # These few files of some lines come before ours can catch anything; importing `eventstore` imports nothing else.
    before = {
        "__future__",
        "eventstore",
        "eventstore.cli",
        "eventstore.cli.start",
        "eventstore.__main__",
        "pyspark_eventstore.start",
    }
    late = [(name, code, said) for name, code, said in ends if name not in before]
    assert [each for each in late if each[1:] != (130, "")] == []
