"""What replicas cost and bring: `python -m benchmarks.replicas [--quick] [--json]`; needs an etcd (Debian: etcd-server).

Clusters of one shard on nodes of this machine, with one replica and with three. A row compares both in turns, in rates and in
processor time of the process that leads, and of one that follows.

lock-step       one client, one append at a time
in flight       two client processes, each with 256 appends in flight
peers           appends of 256 bytes, one at a time by one client, to the same with others that keep copies, in turns: puts into
                an etcd of three members, inserts into PostgreSQL with a synchronous standby, messages to JetStream with three
                replicas; for the last also 256 in flight. Those that are not installed are left out by name
failover        from the SIGKILL of the leader's node to the first append that is acknowledged; leases of 2 s
handing over    the longest time between two acknowledged appends of a client in lock-step while another replica is made leader
catching up     a follower whose folder was removed, until it is in sync again
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import truediv
from pathlib import Path
from typing import Final, Self

import eventstore as es
from benchmarks.harness.appender import check
from benchmarks.harness.catalogue import OWN, Catalogue, started
from benchmarks.harness.processes import ROOT
from benchmarks.harness.report import report_rows
from benchmarks.harness.shard_client import IN_FLIGHT
from benchmarks.harness.subject import PAYLOAD, Measured, Run, Subject, processor_s
from benchmarks.peers import Scratch
from benchmarks.peers.etcd import Etcd, EtcdMembers
from eventstore.client.blocking.store import BlockingStore
from eventstore_cluster.nodes.handing_over import hand_over
from eventstore_cluster.nodes.registry_status import registry_status
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.status import ShardRow

Figures = dict[str, float]
NAMES: Final = ("n1", "n2", "n3")
LEASE_S: Final = 2
CLUSTER: Final = "bench"
_PAYLOAD: Final = b"x" * 100
_WAIT_S: Final = 120.0
_LOG_CHARACTERS: Final = 600
_PORTS: Final = range(20_000, 32_000)
"""Below those that a connection, or a server that asks for any, is given: a node whose port is taken does not start."""


class Cluster:
    """Shards with so many replicas on as many nodes at first."""

    def __init__(self, replicas: int, *settings: str, shards: int = 1) -> None:
        self._scratch = Scratch(f"replicas-{replicas}")
        self._settings, self._shards = settings, shards
        self.replicas = replicas
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        first = _PORTS.start + (os.getpid() % (len(_PORTS) // 400) * 4 + replicas) * 100
        self._ports = {name: first + 30 * at for at, name in enumerate(NAMES)}

    def __enter__(self) -> Self:
        try:
            self.etcd = EtcdMembers(self._scratch.path)
            self.options = EtcdOptions((self.etcd.url,))
            for name in NAMES[: self.replicas]:
                self.start(name)
            create = (
                "cluster",
                "create",
                "--shards",
                str(self._shards),
                "--replicas",
                str(self.replicas),
                "--cluster",
                CLUSTER,
            )
            subprocess.run(
                [sys.executable, "-m", "eventstore", *create, "--etcd", self.etcd.url, "--wait", "60"],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            self.wait_until_in_sync()
        except BaseException as error:
            for name in self._nodes:
                error.add_note(f"{name} said last: {self._log(name).read_text(errors='replace')[-_LOG_CHARACTERS:]}")
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._nodes):
            self.kill(name)
        self.etcd.stop()
        self._scratch.remove()

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "eventstore", "node", "--name", name, "--data", str(self.folder(name))]
        command += ["--listen", f"127.0.0.1:{self._ports[name]}", "--etcd", self.etcd.url, "--cluster", CLUSTER]
        with self._log(name).open("ab") as log:
            command += ["--lease", str(LEASE_S), *self._settings]
            self._nodes[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def folder(self, name: str) -> Path:
        return self._scratch.path / name

    def _log(self, name: str) -> Path:
        return self._scratch.path / f"{name}.log"

    def kill(self, name: str) -> None:
        node = self._nodes.pop(name)
        for pid in (node.pid, *self._shard_pids(node.pid)):  # the node first: it would tell etcd that its shard has ended
            os.kill(pid, signal.SIGKILL)
        node.wait()

    @staticmethod
    def _shard_pids(node: int) -> list[int]:
        def children(pid: int) -> list[int]:
            threads = Path(f"/proc/{pid}/task").iterdir()
            return [int(child) for each in threads for child in (each / "children").read_text().split()]

        return [copy for template in children(node) for copy in children(template)]

    def shard_pid(self, node: int) -> int:
        return next(iter(self._shard_pids(node)), node)

    @property
    def address(self) -> str:
        return ",".join(f"tcp://127.0.0.1:{self._ports[name]}" for name in self._nodes)

    def row(self) -> ShardRow:
        return self.rows()[0]

    def rows(self) -> list[ShardRow]:
        return registry_status(self.options, CLUSTER, 0).shards

    def wait_until_in_sync(self) -> None:
        wait_until(lambda: all(row.error is None and len(row.in_sync or ()) == self.replicas for row in self.rows()))

    def hand_over(self, successor: str) -> str:
        """Returns who leads after that."""
        return hand_over(self.options, CLUSTER, 0, successor, _WAIT_S).node

    def processor_s(self) -> tuple[float, float]:
        """Returns the processor time of the leader, and of all followers together."""
        leader = self.row().node
        used = {name: processor_s(self.shard_pid(node.pid)) for name, node in self._nodes.items()}
        return used[str(leader)], sum(each for name, each in used.items() if name != leader)

    def client(self) -> BlockingStore:
        return es.blocking.connect(self.address, timeout=None, reconnect_timeout=_WAIT_S, silence_timeout=120.0)


def wait_until(condition: Callable[[], bool], seconds: float = _WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.1)


def append_one_by_one(store: BlockingStore, prefix: str, count: int) -> float:
    """Returns appends a second."""
    started = time.perf_counter()
    for number in range(count):
        store.append(f"{prefix}-{number % 97}", [es.NewEvent("Happened", _PAYLOAD)], es.ANY)
    return count / (time.perf_counter() - started)


def append_many(cluster: Cluster, count: int, clients: int = 2) -> float:
    """Returns appends a second of all clients, each with 256 in flight."""
    program = [sys.executable, "-m", "benchmarks.harness.shard_client", cluster.address, "append", str(count)]
    running = [
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(clients)
    ]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    started = time.perf_counter()
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in running:
        each.communicate()
    return clients * count / (time.perf_counter() - started)


def lock_step(count: int, rounds: int) -> Figures:
    rates: dict[int, list[float]] = {1: [], 3: []}
    used: dict[int, list[tuple[float, float]]] = {1: [], 3: []}
    with ExitStack() as stack:
        clusters = [stack.enter_context(Cluster(replicas)) for replicas in (1, 3)]
        stores = [stack.enter_context(cluster.client()) for cluster in clusters]
        for number in range(rounds + 1):
            for cluster, store in list(zip(clusters, stores, strict=True))[:: 1 if number % 2 else -1]:
                before = cluster.processor_s()
                rate = append_one_by_one(store, f"a{number}", count)
                after = cluster.processor_s()
                if number:  # the first round warms up
                    rates[cluster.replicas].append(rate)
                    used[cluster.replicas].append(((after[0] - before[0]) / count, (after[1] - before[1]) / count))
    return _compared(rates, used)


def in_flight(count: int, rounds: int) -> Figures:
    rates: dict[int, list[float]] = {1: [], 3: []}
    used: dict[int, list[tuple[float, float]]] = {1: [], 3: []}
    with Cluster(1) as one, Cluster(3) as three:
        for number in range(rounds + 1):
            for cluster in (one, three)[:: 1 if number % 2 else -1]:
                before = cluster.processor_s()
                rate = append_many(cluster, count)
                after = cluster.processor_s()
                if number:
                    rates[cluster.replicas].append(rate)
                    used[cluster.replicas].append(((after[0] - before[0]) / (2 * count), (after[1] - before[1]) / (2 * count)))
    return _compared(rates, used)


def _compared(rates: dict[int, list[float]], used: dict[int, list[tuple[float, float]]]) -> Figures:
    alone = statistics.median(leader for leader, _ in used[1])
    return {
        "rate to 1 replica": statistics.median(more / one for one, more in zip(rates[1], rates[3], strict=True)),
        "leader's time to 1 replica": statistics.median(leader for leader, _ in used[3]) / alone,
        "follower's time to a leader alone": statistics.median(others / 2 for _, others in used[3]) / alone,
        "rate /s": statistics.median(rates[3]),
        "rate of 1 replica /s": statistics.median(rates[1]),
        "leader, µs": statistics.median(leader for leader, _ in used[3]) * 1e6,
        "leader alone, µs": alone * 1e6,
    }


def peers(count: int, rounds: int, notes: list[str]) -> Figures:
    """Measures all in turns. Adds to `notes` which peers take part, and why others do not."""
    with Cluster(3) as cluster, cluster.client() as store, started(list(_PEERS), _PEERS, ()) as (running, skipped):
        runs: dict[str, dict[str, Run]] = {_LOCK_STEP: {OWN: _own(store, 1)}, _IN_FLIGHT: {OWN: _own(store, IN_FLIGHT)}}
        for peer in running.values():
            name = peer.name if peer.durable else f"{peer.name} (not synced)"
            notes.append(f"{name}: release {peer.version}")
            for workload, run in peer.workloads().items():
                if workload in _COMPARED:
                    runs[_COMPARED[workload]][name] = run
        notes += [f"Skipped: {name}: {reason}" for name, reason in skipped.items()]
        return {name: value for kind, own in runs.items() for name, value in _in_turns(kind, own, count, rounds).items()}


def _in_turns(kind: str, runs: dict[str, Run], count: int, rounds: int) -> Figures:
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            rate = runs[name](count * (IN_FLIGHT // 16 if kind == _IN_FLIGHT else 1)).rate
            if number:  # the first round warms up
                rates[name].append(rate)
    own = rates.pop(OWN)
    ratios = {f"{kind}, rate to {name}": statistics.median(map(truediv, own, other)) for name, other in rates.items()}
    return {
        **ratios, f"{kind}, rate /s": statistics.median(own),
        **{f"{kind}, {name} /s": statistics.median(other) for name, other in rates.items()},
    }  # fmt: skip


def _own(store: BlockingStore, in_flight: int) -> Run:
    def run(count: int) -> Measured:
        event, began = [es.NewEvent("Happened", PAYLOAD)], time.perf_counter()
        rounds = max(1, count // in_flight)
        for _ in range(rounds):
            if in_flight == 1:
                store.append("peers", event, es.ANY)
            else:
                check(store.append_many([es.Commit(f"peers-{at % 97}", event, es.ANY) for at in range(in_flight)]))
        return Measured(rounds * in_flight, time.perf_counter() - began)

    return run


def _postgresql() -> Subject:
    from benchmarks.peers.postgresql import PostgreSQL

    return PostgreSQL(standby=True)


def _jetstream() -> Subject:
    from benchmarks.peers.jetstream import JetStream

    return JetStream(replicas=3)


_PEERS: Final[Catalogue] = {"etcd": Etcd, "postgresql": _postgresql, "jetstream": _jetstream}
_LOCK_STEP: Final = "one at a time"
_IN_FLIGHT: Final = f"{IN_FLIGHT} in flight"
_COMPARED: Final = {"append_lockstep_1": _LOCK_STEP, "send_lockstep": _LOCK_STEP, "send_pipelined": _IN_FLIGHT}


def failover(rounds: int) -> Figures:
    times: list[float] = []
    with Cluster(3) as cluster, cluster.client() as store:
        for number in range(rounds):
            append_one_by_one(store, f"f{number}", 50)
            leader = str(cluster.row().node)
            killed = time.perf_counter()
            cluster.kill(leader)
            store.append("failover", [es.NewEvent("Happened", _PAYLOAD)], es.ANY)
            times.append(time.perf_counter() - killed - LEASE_S)
            cluster.start(leader)
            cluster.wait_until_in_sync()
    return {
        "seconds after the lease, median": statistics.median(times), "seconds after the lease, longest": max(times),
    }  # fmt: skip


def handing_over(rounds: int) -> Figures:
    stalls: list[float] = []
    with Cluster(3) as cluster, cluster.client() as store:
        append_one_by_one(store, "h", 500)
        for _ in range(rounds):
            leader = str(cluster.row().node)
            successor = next(name for name in NAMES if name != leader)
            _commit_offsets(store)  # a hand-over saves them
            with ThreadPoolExecutor(1) as pool:
                handed = pool.submit(cluster.hand_over, successor)
                longest, last, done = 0.0, time.perf_counter(), False
                while not done:
                    done = handed.done()  # one append is begun after that
                    store.append("handing-over", [es.NewEvent("Happened", _PAYLOAD)], es.ANY)
                    longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
            assert handed.result() == successor
            stalls.append(longest)
            cluster.wait_until_in_sync()
    return {"ms without an append, median": 1e3 * statistics.median(stalls), "ms without an append, longest": 1e3 * max(stalls)}


def _commit_offsets(store: BlockingStore) -> None:
    store.broker.create_topic("handed", 1, if_missing=True)
    store.topic("handed").send_many([_PAYLOAD] * 10)
    with store.consumer("hands", "handed") as consumer:
        for _ in range(10):
            next(consumer).done()


def catching_up(megabytes: int) -> Figures:
    event = [es.NewEvent("Happened", b"x" * 4_000)]
    with Cluster(3, "--set=file_size_bytes=134217728") as cluster, cluster.client() as store:
        for first in range(0, megabytes * 250, 500):
            store.append_many([es.Commit(f"c-{first + at}", event, es.ANY) for at in range(500)])
        follower = next(name for name in NAMES if name != cluster.row().node)
        cluster.kill(follower)
        shutil.rmtree(cluster.folder(follower))
        started = time.perf_counter()
        cluster.start(follower)
        node, leader = cluster.folder(follower), cluster.folder(str(cluster.row().node))
        wanted = _size(leader)
        wait_until(lambda: _size(node) > 0)
        began = time.perf_counter()
        wait_until(lambda: _size(node) >= wanted)
        took = time.perf_counter() - began
        cluster.wait_until_in_sync()
    return {"MB/s": wanted / took / 1e6, "seconds to in sync": time.perf_counter() - started, "MB": wanted / 1e6}


def _size(folder: Path) -> int:
    """Returns the bytes of whole files of a replica, zeros that are written ahead included."""
    return sum(path.stat().st_size for path in (folder / "shard-0" / "events").glob("*.events"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests and rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", default="", help="only rows whose names contain this")
    options = parser.parse_args(argv)
    if shutil.which("etcd") is None:
        print("etcd is not installed: apt-get install etcd-server", file=sys.stderr)
        return 1
    quick, rounds = options.quick, 3 if options.quick else 7
    notes: list[str] = []
    rows: dict[str, Callable[[], Figures]] = {
        "lock-step": lambda: lock_step(500 if quick else 2_000, rounds),
        "in flight": lambda: in_flight(10_240 if quick else 51_200, rounds),
        "peers": lambda: peers(300 if quick else 1_000, rounds, notes),
        "failover": lambda: failover(3 if quick else 10),
        "handing over": lambda: handing_over(5 if quick else 20),
        "catching up": lambda: catching_up(500 if quick else 2_000),
    }
    chosen = {name: measure for name, measure in rows.items() if options.rows in name}
    report_rows(chosen, f"replicas{'-quick' if quick else ''}", as_json=options.json, notes=notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
