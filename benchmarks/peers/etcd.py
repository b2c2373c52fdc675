"""etcd: puts into three members, each of which syncs its log; a put is acknowledged when two have it."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from benchmarks.harness.subject import PAYLOAD, Measured, Run
from benchmarks.peers import Scratch, Server, executable, free_port

_KEYS = 97


class EtcdMembers:
    """An etcd of so many members, in a folder. `url`: of one of them.

    Raises:
        Unavailable
    """

    def __init__(self, folder: Path, members: int = 1) -> None:
        program = executable("etcd", hint="apt-get install etcd-server")
        ports = [(free_port(), free_port()) for _ in range(members)]
        cluster = ",".join(f"e{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(ports))
        self.url = f"http://127.0.0.1:{ports[0][0]}"
        self._servers: list[Server] = []
        for at, (port, peer) in enumerate(ports):
            client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
            own = folder / f"e{at}"
            own.mkdir(mode=0o700)
            command = [program, "--name", own.name, "--data-dir", str(own / "data"), "--initial-cluster", cluster]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
            self._servers.append(Server(command, own))
        try:
            self._servers[0].wait_until_ready(self._probe, (httpx.HTTPError,))
        except BaseException:
            self.stop()
            raise

    def _probe(self) -> None:
        httpx.get(f"{self.url}/health", timeout=1.0).raise_for_status()

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


class Etcd:
    name = "etcd with 3 members"
    durable = True

    def __init__(self) -> None:
        self.version = "?"
        self._scratch: Scratch | None = None
        self._members: EtcdMembers | None = None
        self._http = httpx.Client(trust_env=False)

    def start(self) -> None:
        self._scratch = Scratch("etcd")
        self._members = EtcdMembers(self._scratch.path, 3)
        self.version = self._http.get(f"{self._members.url}/version").json()["etcdserver"]

    def stop(self) -> None:
        self._http.close()
        if self._members is not None:
            self._members.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {"append_lockstep_1": self._lockstep}

    def fill(self, events: int) -> None:
        self._lockstep(events)

    def _lockstep(self, puts: int) -> Measured:
        assert self._members is not None
        url, value = f"{self._members.url}/v3/kv/put", base64.b64encode(PAYLOAD).decode()
        started = time.perf_counter()
        for at in range(puts):
            key = base64.b64encode(b"a-%d" % (at % _KEYS)).decode()
            self._http.post(url, json={"key": key, "value": value}).raise_for_status()
        return Measured(puts, time.perf_counter() - started)
