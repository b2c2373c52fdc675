"""A real worker in a process of its own, to be killed; as `tests.server_process` has a server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import DEADLINE_SECONDS, wait_until


class WorkerProcess:
    """`eventstore work` on the store at `store_address`, with a JSON log in `folder`."""

    def __init__(
        self, store_address: str, folder: Path, *, domain: str = "tests.server.tallies:app", listen: str = "127.0.0.1:0",
        checkpoint: Path | None = None,
    ) -> None:  # fmt: skip
        self._log = folder / f"worker-{id(self)}.log"
        options = [] if checkpoint is None else ["--checkpoint", str(checkpoint)]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "eventstore.cli.main", "work", "--domain", domain, "--store", store_address,
                    "--listen", listen, "--log-format", "json", *options,
                ],
                env={name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_until(lambda: self.said("working") or self.process.poll() is not None, "the worker starts")
            assert self.said("working"), self.log()
        except BaseException:
            self.kill()
            raise

    @property
    def address(self) -> str:
        return str(self.said("working")[0]["address"])

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log's lines about this event."""
        found = []
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [each for each in found if isinstance(each, dict) and each.get("event") == event]

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
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
