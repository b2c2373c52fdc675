"""A real worker in a separate process."""

from __future__ import annotations

from pathlib import Path

from tests.logged_process import EVENTSTORE, LoggedProcess


class WorkerProcess(LoggedProcess):
    """`eventstore work` on the store at `store_address`, with its log in `folder`."""

    def __init__(
        self, store_address: str, folder: Path, *, domain: str = "tests.server.commands.tallies:app",
        listen: str = "127.0.0.1:0", checkpoint: Path | None = None,
    ) -> None:  # fmt: skip
        options = ["--domain", domain, "--store", store_address, "--listen", listen, "--log-format", "json"]
        if checkpoint is not None:
            options += ["--checkpoint", str(checkpoint)]
        super().__init__([*EVENTSTORE, "work", *options], folder / f"worker-{id(self)}.log", "working")
