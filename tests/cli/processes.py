"""Runs servers and commands as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests.forked_process import ForkedProcess
from tests.logged_process import logged_lines

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120.0
TICK_SECONDS = 0.02
PROGRAM = (sys.executable, "-m", "eventstore")


def environment() -> dict[str, str]:
    """Returns the environment of the tests, without settings of a server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")}


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Returns when the condition holds; fails at the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS:.0f} s"
        time.sleep(TICK_SECONDS)


def run(*arguments: object, store: str | None = None, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    words = [*map(str, arguments), *(["--store", store] if store else [])]
    # Files, not pipes: no reader is needed, and a child that inherits the output does not keep it open.
    with TemporaryFile("w+") as stdin, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        stdin.write(text or "")
        stdin.seek(0)
        process = ForkedProcess(words, environment(), stdout, stderr, stdin)
        try:
            code = process.wait(DEADLINE_SECONDS)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(words, code, stdout.read(), stderr.read())


def fork(*arguments: object, stdout: IO[bytes], stderr: IO[bytes]) -> ForkedProcess:
    """Starts a command that takes a while; the caller waits for its end."""
    return ForkedProcess([*map(str, arguments)], environment(), stdout, stderr)


def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command as a shell does; the caller waits for its end."""
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], env=environment(), **options)


def output(*arguments: object, store: str | None = None, text: str | None = None) -> str:
    """Returns the output of a command that must succeed."""
    result = run(*arguments, store=store, text=text)
    assert result.returncode == 0, f"exit code {result.returncode}: {result.stdout}{result.stderr}"
    assert "Traceback" not in result.stderr
    return result.stdout


def refused(*arguments: object, store: str | None = None, code: int = 1, text: str | None = None) -> str:
    """Returns the one line of error of a command that must fail."""
    result = run(*arguments, store=store, text=text)
    assert result.returncode == code, f"exit code {result.returncode}: {result.stdout}{result.stderr}"
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


class Server:
    """Runs `eventstore serve` on a free port of the loopback interface."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.log = data.with_suffix(".log")
        with open(self.log, "wb") as log:
            self.process = fork(
                "serve", "--data", data, "--listen", "127.0.0.1:0", "--log-format", "json", *options, stdout=log, stderr=log
            )
        wait_for(lambda: self.said("serving") or self.process.poll() is not None, "the server starts")
        serving = self.said("serving")
        assert serving is not None, self.log.read_text()
        self.store = str(serving["address"])
        self.opened = serving

    def said(self, event: str) -> dict[str, Any] | None:
        return next((line for line in logged_lines(self.log) if line["event"] == event), None)

    def stats(self) -> dict[str, Any]:
        figures: dict[str, Any] = json.loads(output("stats", "--json", store=self.store))
        return figures

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_SECONDS)


def line(aggregate_id: str, command_id: str, event_type: str = "Happened", data: object = 1, **more: object) -> str:
    """Returns a line of an import file."""
    members = {
        "aggregate_id": aggregate_id, "command_id": command_id, "event_type": event_type,
        "timestamp": "2026-01-31T12:00:00.000001+01:00", "data": data,
    }  # fmt: skip
    return json.dumps(members | more, separators=(",", ":"))
