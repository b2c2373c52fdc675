"""Runs etcd and the nodes, each in a process group of its own, so that killing one is like pulling its plug."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from demo.stage import DEADLINE_SECONDS, expect, wait_until

PROGRAM: Final = (sys.executable, "-m", "eventstore")


_PORTS: Final = iter(range(21_000 + os.getpid() % 100 * 100, 32_000, 50))  # below those of clients
_SPAN: Final = 20  # a node uses its port, and those of its shards from 10 above it on


def free_port() -> int:
    """Returns a port that is free, as are the next ones."""
    for first in _PORTS:
        with ExitStack() as stack:
            try:
                for port in range(first, first + _SPAN):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError("no free ports between 21000 and 32000")


def etcd_program() -> str | None:
    """Returns the etcd of this machine, or the one that was installed beside this Python."""
    return shutil.which("etcd") or shutil.which("etcd", path=str(Path(sys.executable).parent))


class Machine:
    """A process and all that it starts. Its log is a file in `scratch`."""

    def __init__(self, scratch: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command, self._log = command, scratch / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Ends everything on it at once."""
        if self._process is not None:
            children = _children(self._process.pid)
            for pid in (self._process.pid, *children):  # it first: it would tell etcd that they have ended
                os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stops it in order."""
        if self._process is not None:
            self._process.terminate()
            expect(self._process.wait(DEADLINE_SECONDS) == 0, f"{self.name} did not stop in order: {self._log.read_text()}")
            self._process = None


def _children(pid: int) -> list[int]:
    """Returns the processes that this one has started: the shards of a node."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for thread in threads for each in (thread / "children").read_text().split()]


class Etcd(Machine):
    @property
    def used(self) -> str:
        """Which one that is. The one of PyPI is of a version that may lose data; of a demo they are thrown away."""
        program = self._command[0]
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        version = said.partition(":")[2].split()[0]
        known = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
        faulty = known < (3, 4, 22) or (3, 5) <= known < (3, 5, 6)
        return f"etcd {version}, {program}" + ("; for trying only: CLUSTER.md names the versions to run" if faulty else "")

    def __init__(self, scratch: Path) -> None:
        self.url, peers = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        command = [
            etcd_program() or "etcd",
            "--name",
            "e1",
            "--data-dir",
            str(scratch / "etcd"),
            "--initial-cluster",
            f"e1={peers}",
        ]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        super().__init__(scratch, "etcd", [*command, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers])

    def start(self) -> None:
        super().start()
        wait_until(self._answers, "etcd serves")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Node(Machine):
    """`address`: where clients ask it for the map."""

    def __init__(self, scratch: Path, name: str, etcd: str, lease_s: int) -> None:
        self.data = scratch / name
        listen = f"127.0.0.1:{free_port()}"
        self.address = f"tcp://{listen}"
        options = ["--name", name, "--data", str(self.data), "--listen", listen, "--etcd", etcd, "--lease", str(lease_s)]
        super().__init__(scratch, name, [*PROGRAM, "node", *options])


def run(*command: str) -> str:
    """Runs a command of `eventstore` to its end, and returns what it printed."""
    done = subprocess.run([*PROGRAM, *command], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    expect(done.returncode == 0, f"eventstore {' '.join(command)}: {done.stderr}")
    return done.stdout
