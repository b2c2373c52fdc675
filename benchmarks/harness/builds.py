"""Two builds of this project side by side: this tree, and a commit of it, each with a client and a server of its own.

A build is measured in a process that imports it, which starts the server with the same code. What measures is that of this
tree in both. The process takes commands as lines of JSON: what to fill, or which workload to run, and how much of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.subject import Measured, Run, Subject, Unavailable, timed

ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("", "mailbox", "cluster")
NOW: Final = "now"


class Build:
    """What `make` (such as `benchmarks.ours.server:EventStore`) makes where the code of the project is that of `source`."""

    durable = True
    version = ""  # the name says it

    def __init__(self, name: str, source: Path, make: str) -> None:
        self.name = name
        self._source = source
        self._make = make
        self._process: subprocess.Popen[str] | None = None
        self._alone = tempfile.TemporaryDirectory(prefix="benchmark-build-")  # of this tree only `benchmarks` is found there

    def start(self) -> None:
        folder = Path(self._alone.name)
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        paths = [*(str(self._source / package) for package in _PACKAGES), str(folder)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.builds", self._make],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            imported = self._ask("start")
        except RuntimeError as error:
            raise Unavailable(str(error)) from None
        if not str(imported).startswith(str(self._source)):
            raise Unavailable(f"it would measure the code in {imported} instead of that in {self._source}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()  # the end of its input ends it
        self._alone.cleanup()

    def workloads(self) -> Mapping[str, Run]:
        return {name: partial(self._run, name) for name in self._ask("workloads")}

    def fill(self, events: int) -> None:
        self._ask("fill", events)

    def _run(self, workload: str, size: int) -> Measured:
        return Measured(*self._ask("run", workload, size))

    def _ask(self, *command: Any) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that measures {self.name} has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]


@contextmanager
def builds(commit: str, make: str) -> Iterator[dict[str, Callable[[], Subject]]]:
    """This tree as `now`, and the tree of a commit, which is checked out into a temporary folder until the end."""
    name = _git("rev-parse", "--short", f"{commit}^{{commit}}").strip()
    with tempfile.TemporaryDirectory(prefix="benchmark-commit-") as folder:
        source = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(source), name)
        try:
            yield {NOW: lambda: Build(NOW, ROOT, make), name: lambda: Build(name, source, make)}
        finally:
            _git("worktree", "remove", "--force", str(source))


def _git(*arguments: str) -> str:
    ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {ended.stderr.strip()}")
    return ended.stdout


def _measured(subject: Subject) -> None:
    """Carries out the commands on standard input until its end."""
    for line in sys.stdin:
        command, *given = json.loads(line)
        try:
            answer = {"ok": _answer(subject, command, *given)}
        except Exception as error:  # the other side shows it
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def _answer(subject: Subject, command: str, *given: Any) -> Any:
    if command == "start":
        subject.start()
        return import_module("eventstore").__file__
    if command == "workloads":
        return list(subject.workloads())
    if command == "fill":
        return subject.fill(*given)
    workload, size = given
    measured = timed(subject.workloads()[workload], size)
    return measured.count, measured.seconds, measured.client_s, measured.server_s


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    measured_here: Subject = getattr(import_module(module), name)()
    try:
        _measured(measured_here)
    finally:
        measured_here.stop()
