"""An etcd of one member on a host of the test's network, which can be killed, paused and started again on its data."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.cluster.etcd.etcd_program import MISSING, etcd_program
from tests.waiting import wait_until


class EtcdProcess:
    """`url`: for clients. It writes its log to a file: nobody has to read it for etcd to go on."""

    def __init__(self, folder: Path, host: str, ports: tuple[int, int], before: Sequence[str]) -> None:
        self.url, peers = (f"http://{host}:{port}" for port in ports)
        self._log = folder / "etcd.log"
        program = etcd_program()
        assert program is not None, MISSING
        self._command = [
            *before, program, "--name", "e0", "--data-dir", str(folder / "etcd"), "--logger=zap", "--log-outputs=stdout",
            "--log-level=warn", "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"e0={peers}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def ready(self) -> None:
        wait_until(self._answers, "etcd answers")

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=1.0) as answer:
                return b'"true"' in answer.read()
        except (URLError, OSError):
            return False

    def send(self, what: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(what)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
