"""A real server in a process of its own, to be killed, starved and traced; and what it says in its log."""

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

PROGRAM = (sys.executable, "-m", "eventstore.cli.main", "serve")


class ServerProcess:
    """`eventstore serve` on a free port of the loopback interface, with a JSON log. `before`: what the command begins with.

    `limits`: pairs of a resource and its (soft, hard) limit, for `prlimit`.
    """

    def __init__(
        self, data: Path, *, before: Sequence[str] = (), listen: str = "127.0.0.1:0", wait: bool = True, **settings: Any
    ) -> None:
        self.data = data
        given = {"preallocate_bytes": 1024 * 1024, "log_format": "json", **settings}
        options = [f"--set={name}={value}" for name, value in given.items()]
        self._log = data.with_name(f"{data.name}-{id(self)}.log")
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*before, *PROGRAM, "--data", str(data), "--listen", listen, *options],
                env={name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        if wait:
            self.wait_until_serving()

    def wait_until_serving(self) -> None:
        try:
            wait_until(lambda: self.said("serving") or self.process.poll() is not None, "the server starts")
            assert self.said("serving"), self.log()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return str(self.said("serving")[0]["address"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http(self) -> str:
        return f"http://{self.said('serving')[0]['http']}"

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
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
