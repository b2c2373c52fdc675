"""A real server or worker in a process of its own, to be killed, starved and traced; and what it says in its log."""

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

from tests.waiting import DEADLINE_SECONDS, wait_until

EVENTSTORE = (sys.executable, "-m", "eventstore.cli.main")


class LoggedProcess:
    """`command`, whose JSON log goes to the file `log`, and says `ready` there when it takes requests."""

    def __init__(self, command: Sequence[str], log: Path, ready: str, *, wait: bool = True) -> None:
        self._log = log
        self._ready = ready
        with open(log, "wb") as opened:
            self.process = subprocess.Popen(
                command, env={name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")},
                stdin=subprocess.DEVNULL, stdout=opened, stderr=opened,
            )  # fmt: skip
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
        """The log's lines that are structured, in order."""
        found = []
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [each for each in found if isinstance(each, dict)]

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log's lines about this event."""
        return [line for line in self.lines() if line.get("event") == event]

    def memory_peak_bytes(self) -> int:
        """The most memory it ever had resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))

    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def let_go_of_tracer(self) -> None:
        """Ends the strace that was begun with `before`; the server goes on without it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        tracer = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid:"))
        assert tracer, "nobody traces the server"
        os.kill(tracer, signal.SIGKILL)  # the kernel lets its tracees run on

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for its end; the exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
