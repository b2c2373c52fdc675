"""An etcd of three members, each on a host of its own, which can be killed, paused and started again on their data."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.cluster.etcd.etcd_program import MISSING, etcd_program
from tests.waiting import wait_until

MEMBERS: Final = ("e1", "e2", "e3")
_ASKED_S: Final = 1.0


class EtcdMember:
    """`url`: for clients; `peers`: for the others. It writes its log to a file: nobody has to read it for etcd to go on."""

    def __init__(self, name: str, host: str, ports: tuple[int, int], before: Sequence[str]) -> None:
        self.name = name
        self.url, self.peers = (f"http://{host}:{port}" for port in ports)
        self._before = before
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path, cluster: str) -> None:
        if self._process is not None:
            return
        program = etcd_program()
        assert program is not None, MISSING
        command = [
            *self._before, program, "--name", self.name, "--data-dir", str(folder / self.name), "--logger=zap",
            "--log-outputs=stdout", "--log-level=warn", "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", self.peers, "--initial-advertise-peer-urls", self.peers, "--initial-cluster", cluster,
        ]  # fmt: skip
        with (folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def answers(self) -> bool:
        """Whether it serves, and has a quorum."""
        try:
            with urlopen(f"{self.url}/health", timeout=_ASKED_S) as answer:
                return b'"true"' in answer.read()
        except (URLError, OSError):
            return False

    def leads(self) -> bool:
        """Whether it is the one that the others elected."""
        try:
            with urlopen(Request(f"{self.url}/v3/maintenance/status", b"{}"), timeout=_ASKED_S) as answer:
                said = json.load(answer)
                return bool(said["leader"] == said["header"]["member_id"])
        except (URLError, OSError, ValueError, KeyError):
            return False

    def send(self, what: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(what)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class EtcdProcesses:
    """`url`: of all members, as an option of a command."""

    def __init__(self, folder: Path, members: Sequence[EtcdMember]) -> None:
        self._folder, self._members = folder, {member.name: member for member in members}
        self._cluster = ",".join(f"{member.name}={member.peers}" for member in members)
        self.url = ",".join(member.url for member in members)

    def start(self, names: Sequence[str] = MEMBERS) -> None:
        """Starts the members that do not run."""
        for name in names:
            self._members[name].start(self._folder, self._cluster)

    def ready(self) -> None:
        wait_until(lambda: all(member.answers() for member in self._members.values()), "etcd answers")

    def leader(self) -> str | None:
        """Returns the member that leads; None if none says so."""
        return next((name for name, member in self._members.items() if member.leads()), None)

    def send(self, names: Sequence[str], what: signal.Signals) -> None:
        for name in names:
            self._members[name].send(what)

    def kill(self, names: Sequence[str] = MEMBERS) -> None:
        for name in names:
            self._members[name].kill()
