"""Runs `eventstore serve` in a process of its own, to be stopped, killed and started again."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from demo.stage import DEADLINE_SECONDS, expect, wait_until

PROGRAM: Final = (sys.executable, "-m", "eventstore")


class ServerProcess:
    """Writes its log to a file beside the data. `cwd` is the folder in which the server looks for a domain."""

    def __init__(self, scratch: Path, *options: str, cwd: Path | None = None) -> None:
        self.data = scratch / "data"
        self._options = options
        self._cwd = cwd
        self._log = scratch / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self.address = f"tcp://{self._listen}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, object]:
        """Starts the server, and returns what it logged about the store that it opened."""
        options = ("--listen", self._listen, "--log-format", "json", *self._options)
        with open(self._log, "wb") as log:
            command = [*PROGRAM, "serve", "--data", str(self.data), *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._cwd)
        wait_until(lambda: self._said("serving") is not None or self._ended(), "the server starts")
        said = self._said("serving")
        expect(said is not None, f"the server did not start: {self._log.read_text()}")
        return said or {}

    def stop(self, number: signal.Signals) -> int:
        """Sends a signal, and returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(DEADLINE_SECONDS)
        self._process = None
        return code

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _said(self, event: str) -> dict[str, object] | None:
        for line in self._log.read_text().splitlines():
            try:
                said: dict[str, object] = json.loads(line)
            except ValueError:
                continue
            if said.get("event") == event:
                return said
        return None
