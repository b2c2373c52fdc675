"""A real etcd, alone or as a cluster, in a folder of its own; skipped by name where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.etcd.etcd_program import MISSING, etcd_program
from tests.ports import free_port
from tests.waiting import wait_until


class Etcd:
    """One member. `url`: for its clients."""

    def __init__(
        self, program: str, folder: Path, name: str, ports: tuple[int, int], cluster: str, extra: tuple[str, ...] = ()
    ) -> None:
        self.scheme = "https" if "--cert-file" in extra else "http"
        self.url, peer = f"{self.scheme}://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        self._folder, self._name = folder, name
        self._command = [
            program, "--name", name, "--data-dir", str(folder / name), "--logger=zap", "--log-outputs=stdout",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, *extra,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._log, self._said_before = folder / f"{name}.log", 0

    def start(self) -> None:
        with self._log.open("ab") as log:  # no pipe: one that is full stops it
            self._said_before = log.tell()
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def ready(self) -> None:
        """Waits until it serves clients."""
        wait_until(self._serves, "etcd serves clients")

    def _serves(self) -> bool:
        assert self._process is not None
        ended = self._process.poll()
        said = self._log.read_bytes()[self._said_before :]
        assert ended is None, f"etcd ended with {ended}: {said[-500:].decode(errors='replace')}"
        return b"serving client traffic" in said

    def send(self, what: signal.Signals) -> None:
        """Sends a signal. After SIGSTOP, returns when the process has stopped: until then it may answer."""
        assert self._process is not None
        self._process.send_signal(what)
        if what is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def lose_data(self) -> None:
        """Ends it, and starts it again as a new one."""
        self.kill()
        shutil.rmtree(self._folder / self._name)
        self.start()
        self.ready()

    def copy_data(self, to: Path) -> None:
        """Copies what it has, as a backup does."""
        self.kill()
        shutil.copytree(self._folder / self._name, to)
        self.start()
        self.ready()

    def restore_data(self, copy: Path) -> None:
        """Ends it, and starts it again with what it had when it was copied."""
        self.kill()
        shutil.rmtree(self._folder / self._name)
        shutil.copytree(copy, self._folder / self._name)
        self.start()
        self.ready()

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(
    folder: Path, members: int = 1, extra: tuple[str, ...] = (), which: Callable[[], str | None] = etcd_program
) -> Iterator[list[Etcd]]:
    """Starts the members of an etcd, and kills them at the end."""
    program = which()
    if program is None:
        pytest.skip(MISSING)
    ports = [free_port() for _ in range(2 * members)]
    names = [f"e{number}" for number in range(members)]
    cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, ports[1::2], strict=True))
    pairs = zip(ports[::2], ports[1::2], strict=True)
    etcds = [Etcd(program, folder, name, pair, cluster, extra) for name, pair in zip(names, pairs, strict=True)]
    try:
        for each in etcds:
            each.start()
        for each in etcds:
            each.ready()
        yield etcds
    finally:
        for each in etcds:
            each.kill()
