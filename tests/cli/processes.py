"""Runs servers and commands as real processes."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests.cli.warm import send_request
from tests.warm_servers import ForkedProcess

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


class _Warm:
    """The process that forks for each command (see `tests.cli.warm`), one at a time. It ends with the tests."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(DEADLINE_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment(),
            )  # fmt: skip
        atexit.register(self._close)

    def run(self, arguments: list[str], text: str | None) -> subprocess.CompletedProcess[str]:
        request: dict[str, object] = {"arguments": arguments, "environment": environment(), "folder": os.getcwd()}
        with ExitStack() as opened:
            # Files, not pipes: no reader is needed, and a child that inherits the output does not keep it open.
            streams = [opened.enter_context(TemporaryFile("w+")) for _ in range(3)]
            if text is not None:
                streams[0].write(text)
                streams[0].seek(0)
            stdin = 0 if text is None else streams[0].fileno()
            send_request(self._channel, request, [stdin, *(each.fileno() for each in streams[1:])])
            pid = self._number()
            try:
                code = self._number()
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._number()  # or the next command would read it as its own
                raise
            for each in streams[1:]:
                each.seek(0)
            return subprocess.CompletedProcess(arguments, code, *(each.read() for each in streams[1:]))

    def _number(self) -> int:
        received = b""
        while len(received) < 4:
            received += (more := self._channel.recv(4 - len(received)))
            assert more, "the process that forks has ended"
        return int.from_bytes(received, "little", signed=True)

    def _close(self) -> None:
        self._channel.close()
        self._process.wait(DEADLINE_SECONDS)


_warm = cache(_Warm)


def run(*arguments: object, store: str | None = None, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return _warm().run([*map(str, arguments), *(["--store", store] if store else [])], text)


def fork(*arguments: object, stdout: IO[bytes], stderr: IO[bytes]) -> ForkedProcess:
    """Starts a command that takes a while, from a process that has the libraries; the caller waits for its end."""
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
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                said: dict[str, Any] = json.loads(line)
                if said["event"] == event:
                    return said
        return None

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
