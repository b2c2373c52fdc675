"""Servers and workers of ours as processes, with a client each, for benchmarks that need several of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import eventstore as es
from benchmarks.harness.subject import processor_s
from benchmarks.peers import Scratch, Server, free_port
from eventstore.client.blocking.store import BlockingStore

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "docs" / "examples"
EVENTSTORE: Final = "eventstore"
SERVE: Final = ("serve", "--listen", "{listen}", "--data", "{data}")


class Process:
    """A server or worker on a scratch folder, and a client of it. `{listen}` and `{data}` in its command are replaced.

    `before` is called with the folder of the data, which is new, before it starts. `scheme`: of its address.
    """

    def __init__(self, name: str, *command: str, before: Callable[[Path], None] | None = None, scheme: str = "tcp") -> None:
        self._scratch = Scratch(name)
        listen = f"127.0.0.1:{free_port()}"
        self.address = f"{scheme}://{listen}"
        data = str(self._scratch.path / "data")
        if before is not None:
            before(Path(data))
        os.environ["PYTHONPATH"] = os.pathsep.join((str(EXAMPLES), str(ROOT)))
        program = [sys.executable, "-m", *(part.format(listen=listen, data=data) for part in command)]
        self._server = Server(program, self._scratch.path)
        self.store: BlockingStore = es.blocking.connect(
            self.address, timeout=None, reconnect_timeout=0.5, silence_timeout=120.0
        )

    def __enter__(self) -> Self:
        try:
            self._server.wait_until_ready(lambda: (self.store.__enter__(), None)[1], (es.ConnectionLost,))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self._server.stop()
        self._scratch.remove()

    def processor_s(self) -> float:
        """Processor time of all its threads, also of those that have ended."""
        return processor_s(self._server.pid)

    def peak_bytes(self) -> int:
        """The most that was resident so far."""
        status = Path(f"/proc/{self._server.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._server.pid, number)

    def figure(self, name: str) -> int:
        return int(str(self.store.stats()[name]))
