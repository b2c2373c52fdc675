"""Runs a preforked service under load, while its workers and its store are killed: `python -m tests.client.forks.service`.

gunicorn with `--preload` and Celery's prefork pool share one module, which opens a client before they fork. Every answer is
compared with what the sender knows: the aggregate is its own alone, so each answer has one right value. A request whose worker
was killed is sent again under the same command id.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from billiard.exceptions import WorkerLostError
from celery.exceptions import TimeoutError as NotInTime

from tests.client.forks.whole_files import celery_of
from tests.cluster.node_process import NodeProcess
from tests.ports import free_port
from tests.server_process import ServerProcess
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[3]
PATIENCE_S: Final = 90.0
"""For one answer, kills included: a request that takes longer counts as one that waits without end."""
KILL_EVERY_S: Final = 2.0
KILLED_IN_POOL: Final = 0.02
"""How many of the tasks kill their process."""
SENDERS: Final = 4
"""To each of the two."""


class Service:
    """The store, gunicorn and Celery, over one folder."""

    def __init__(self, folder: Path, stack: ExitStack, shards: int | None = None) -> None:
        """`shards`: of a node, in place of a single store."""
        self._folder, self._shards = folder, shards
        for name in ("queue", "control", "results"):
            (folder / name).mkdir()
        self._server = self._store()
        stack.callback(lambda: self._server.kill())
        self._listen = self._server.address.partition("://")[2]
        self._environment = {**os.environ, "SERVICE_FOLDER": str(folder), "SERVICE_STORE": self._server.address}
        self.tasks = celery_of(folder)
        self.port = free_port()
        module = "tests.client.forks.service_app"
        web = ["--control-socket", str(folder / "gunicorn.ctl"), "--preload", "--workers", "3", "--threads", "2"]
        web += ["--bind", f"127.0.0.1:{self.port}", f"{module}:app"]
        pool = ["--pool", "prefork", "--concurrency", "3", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        self.web = stack.enter_context(self._program("gunicorn", web))
        self.pool = stack.enter_context(self._program("celery", ["-A", f"{module}:tasks", "worker", *pool]))

    def _store(self, listen: str = "127.0.0.1:0") -> ServerProcess | NodeProcess:
        data = self._folder / "data"
        return ServerProcess(data, listen=listen) if self._shards is None else NodeProcess(data, self._shards, listen=listen)

    @contextmanager
    def _program(self, name: str, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        with open(self._folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-m", name, *arguments]
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_until(lambda: len(children(process.pid)) == 3 or process.poll() is not None, f"{name} has forked")
            assert process.poll() is None, self.log(name)
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        """Returns what gunicorn or Celery has printed."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def kill_store(self) -> None:
        """Kills the store, and starts it again where it listened."""
        self._server.kill()
        self._server = self._store(self._listen)


def children(pid: int) -> list[int]:
    """Returns the children of a process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Load:
    """Senders, each with an aggregate of its own. `counts`: what came of their requests; `wrong`: the answers that were."""

    def __init__(self, service: Service, chance: random.Random) -> None:
        self._service = service
        self._chance = chance
        self._stopped = threading.Event()
        self.counts = Counter[str]()
        self.wrong = list[str]()
        self.longest_s = 0.0
        self.pids = set[int]()
        self._threads = [
            threading.Thread(target=self._send, args=(f"{name}-{number}", ask), daemon=True)
            for name, ask in (("web", self._of_web), ("pool", self._of_pool))
            for number in range(SENDERS)
        ]
        for each in self._threads:
            each.start()

    def _send(self, aggregate_id: str, ask: Callable[[str, int], dict[str, Any] | None]) -> None:
        kind, number = aggregate_id.partition("-")[0], 0
        while not self._stopped.is_set():
            number, began, answer = number + 1, time.monotonic(), None
            while answer is None:
                answer = ask(aggregate_id, number)
                took = time.monotonic() - began
                if answer is None and took > PATIENCE_S:
                    self.wrong.append(f"{aggregate_id}: no answer to {number} within {PATIENCE_S:g} s")
                    return
                self.counts[f"{kind}: sent again"] += answer is None
            self.longest_s = max(self.longest_s, took)
            self.pids.add(answer.pop("pid"))
            expected = {"of": aggregate_id, "n": number, "last": number, "stored": number, "version": number}
            if answer == expected:
                self.counts[f"{kind}: right"] += 1
            else:
                self.wrong.append(f"{aggregate_id}: {answer}, expected {expected}")

    def _of_web(self, aggregate_id: str, number: int) -> dict[str, Any] | None:
        url = f"http://127.0.0.1:{self._service.port}/?id={aggregate_id}&n={number}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            self.wrong.append(f"{aggregate_id}: {error} to {number}")
        except (OSError, ValueError, HTTPException):  # its worker was killed
            self._stopped.wait(0.02)
        return None

    def _of_pool(self, aggregate_id: str, number: int) -> dict[str, Any] | None:
        dies = self._chance.random() < KILLED_IN_POOL
        asked = self._service.tasks.send_task("record", (aggregate_id, number, self._chance.random() / 100 if dies else None))
        try:
            found: dict[str, Any] = asked.get(timeout=PATIENCE_S, interval=0.02)
            return found
        except WorkerLostError:
            self.counts["killed: pool worker"] += 1
        except NotInTime:
            self.wrong.append(f"{aggregate_id}: no answer of Celery to {number}")
        except Exception as error:
            self.wrong.append(f"{aggregate_id}: {type(error).__name__}: {error} to {number}")
        finally:
            with suppress(Exception):
                asked.forget()
        return None

    def stop(self) -> None:
        """Waits for the answers that are due."""
        self._stopped.set()
        for each in self._threads:
            each.join(2 * PATIENCE_S)
            if each.is_alive():
                self.wrong.append("a sender waits without end")


def run(folder: Path, seconds: float, seed: int, shards: int | None = None) -> Load:
    """Loads the service for so long, with a kill every two seconds."""
    chance, kills = random.Random(seed), Counter[str]()
    with ExitStack() as stack:
        service = Service(folder, stack, shards)
        load = Load(service, chance)
        over = time.monotonic() + seconds
        try:
            while (left := over - time.monotonic()) > 0 and not load.wrong:
                threading.Event().wait(min(left, KILL_EVERY_S))
                if chance.random() < 0.3:
                    kills["killed: store"] += 1
                    service.kill_store()
                elif workers := children(service.web.pid):
                    kills["killed: web worker"] += 1
                    os.kill(chance.choice(workers), signal.SIGKILL)
        finally:
            load.stop()
        if load.wrong:
            print(service.log("gunicorn")[-5000:], service.log("celery")[-5000:], sep="\n", file=sys.stderr)
    load.counts += kills
    return load


def main() -> int:
    """Runs it, and prints what came of the requests. Exit code 1: an answer was wrong, or missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--shards", type=int)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        load = run(Path(folder), given.seconds, given.seed, given.shards)
    print(f"seed {given.seed}, {given.seconds:g} s, {len(load.pids)} workers, longest answer {load.longest_s:.1f} s")
    for name, count in sorted(load.counts.items()):
        print(f"{count:8} {name}")
    print(f"{len(load.wrong):8} wrong", *load.wrong[:20], sep="\n         ")
    return 1 if load.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
