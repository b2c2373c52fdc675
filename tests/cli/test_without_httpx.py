"""Commands about etcd, in an installation without the extra that asks it: one line says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from eventstore.cli.commands.watch.cluster import cluster
from eventstore.extras import advice
from tests.cli.processes import environment

HIDDEN = "import sys; sys.modules['httpx'] = None; from eventstore.cli.main import run; sys.exit(run(sys.argv[1:]))"
EACH = """
import json, os, sys, tempfile

sys.modules["httpx"] = None
import eventstore_cluster.nodes.options, eventstore.cli.commands.watch.cluster  # what all of them need
from eventstore.cli.main import run

ends = []
for words in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 2)
            sys.exit(run(words))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        ends.append((code, said.read().decode()))
print(json.dumps(ends))
"""
ETCD = ["--etcd", "http://127.0.0.1:9"]
COMMANDS = {
    "create": ["--shards", "1", "--replicas", "1"], "status": [], "top": ["--once"], "lead": ["0", "n1"], "rebuild": [],
    "adopt": ["store", "--name", "n1"], "split": ["0", "--into", "2"], "move": ["0", "--from", "n1", "--to", "n2"], "plans": [],
    "cancel": ["0"], "pause": [], "resume": [], "limits": ["--moves", "4"], "rebalance": [], "drain": ["n1"],
    "replicas": ["3"], "nodes": [], "remove": ["n1"], "upgrade": [],
}  # fmt: skip
MISSING = 2, f"error: etcd is asked by httpx, which is not installed; {advice('cluster')}\n"
ELSEWHERE = {"extract"}


def said(arguments: list[str], folder: Path) -> tuple[int, str]:
    command = [sys.executable, "-c", HIDDEN, *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment(), stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stderr


def test_every_command_about_etcd_is_tried_here() -> None:
    assert {each.name for each in cluster.registered_commands} == {*COMMANDS, *ELSEWHERE}


def test_each_command_says_what_asks_etcd_and_how_it_is_installed(tmp_path: Path) -> None:
    asked = [["cluster", name, *words, *ETCD] for name, words in COMMANDS.items()]
    program = [sys.executable, "-c", EACH, json.dumps(asked)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment())
    assert dict(zip(COMMANDS, json.loads(done.stdout), strict=True)) == {name: [*MISSING] for name in COMMANDS}


def test_a_command_says_so_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert said(["cluster", "status", *ETCD], tmp_path) == MISSING


def test_a_command_that_was_not_told_where_etcd_is_ends_in_one_line_as_well(tmp_path: Path) -> None:
    code, error = said(["cluster", "split", "0"], tmp_path)
    assert (code, error.count("\n")) == (2, 1), error
