"""A real server in a separate process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.logged_process import EVENTSTORE, LoggedProcess

PROGRAM = (*EVENTSTORE, "serve")


class ServerProcess(LoggedProcess):
    """`eventstore serve` on a free port of the loopback interface. `before`: a prefix of the command."""

    def __init__(
        self, data: Path, *, before: Sequence[str] = (), listen: str = "127.0.0.1:0", wait: bool = True, **settings: Any
    ) -> None:
        self.data = data
        given = {"preallocate_bytes": 1024 * 1024, "log_format": "json", **settings}
        options = [f"--set={name}={value}" for name, value in given.items()]
        command = [*before, *PROGRAM, "--data", str(data), "--listen", listen, *options]
        super().__init__(command, data.with_name(f"{data.name}-{id(self)}.log"), "serving", wait=wait)
