"""A real server or worker in a separate process, to be killed, starved and traced; with its log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.forked_process import ForkedProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

EVENTSTORE = (sys.executable, "-m", "eventstore")


class LoggedProcess:
    """`command`, with its JSON log in the file `log`; it logs `ready` when it takes requests.

    `python -m eventstore …` is a `ForkedProcess`; any other command is started.
    """

    def __init__(self, command: Sequence[str], log: Path, ready: str, *, wait: bool = True) -> None:
        self._log = log
        self._ready = ready
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")}
        self.process: subprocess.Popen[bytes] | ForkedProcess
        with open(log, "wb") as opened:
            if tuple(command[:3]) == EVENTSTORE:
                self.process = ForkedProcess(command[3:], environment, opened)
            else:
                self.process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened
                )
        if wait:
            self.wait_until_serving()

    def wait_until_serving(self) -> None:
        try:
            wait_until(lambda: self.said(self._ready) or self.process.poll() is not None, "it starts")
            assert self.said(self._ready), self.log()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return str(self.said(self._ready)[0]["address"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http(self) -> str:
        return f"http://{self.said(self._ready)[0]['http']}"

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """Returns the structured lines of the log, in order."""
        return logged_lines(self._log)

    def said(self, event: str) -> list[dict[str, Any]]:
        """Returns the lines of the log with this event."""
        return [line for line in self.lines() if line.get("event") == event]

    def memory_peak_bytes(self) -> int:
        """Returns its peak resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))

    def descriptors(self) -> int:
        """Returns the number of its open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def let_go_of_tracer(self) -> None:
        """Ends the strace of `before`; the server keeps running."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        tracer = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid:"))
        assert tracer, "the server is not traced"
        os.kill(tracer, signal.SIGKILL)  # the kernel lets its tracees continue

    def terminate(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for its end; the exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        """Sends SIGKILL if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


def logged_lines(log: Path) -> list[dict[str, Any]]:
    """Returns the structured lines of a JSON log, in order. The last may be half written: its end is not there yet."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]
