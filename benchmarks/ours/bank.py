"""A domain in a server of ours as a subject: the bank of docs/examples, a blocking client, many commands in one call."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import eventstore as es
from benchmarks.harness.appender import check
from benchmarks.harness.subject import Measured, Run
from benchmarks.peers import Scratch, Server, free_port
from eventstore.domain.import_path import load

ACCOUNTS = 20_000
_OPENED_AT_ONCE = 2_000  # a call of a client has 10 seconds
EXAMPLES = Path(es.__file__).parents[1] / "docs" / "examples"


class Bank:
    name = "bank"
    version = es.__version__
    durable = True

    def __init__(self) -> None:
        load("bank:app", EXAMPLES)
        self._bank: Any = sys.modules["bank"]
        self._chance = random.Random(7)
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._address = f"127.0.0.1:{free_port()}"
        self._store = es.blocking.connect(f"tcp://{self._address}", reconnect_timeout=0.5)

    def start(self) -> None:
        self._scratch = Scratch("bank")
        os.environ["PYTHONPATH"] = os.pathsep.join((str(EXAMPLES), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, "-m", "eventstore", "serve", "--listen", self._address, "--domain", "bank:app"]
        self._server = Server([*command, "--data", str(self._scratch.path / "data")], self._scratch.path)
        self._server.wait_until_ready(lambda: (self._store.__enter__(), None)[1], (es.ConnectionLost,))
        for first in range(0, ACCOUNTS, _OPENED_AT_ONCE):
            opening = [self._bank.Open(f"acc-{number}", "Ada") for number in range(first, first + _OPENED_AT_ONCE)]
            check(self._store.send_many(opening))

    def stop(self) -> None:
        self._store.close()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def fill(self, events: int) -> None:
        """Nothing: there are no reads."""

    def workloads(self) -> Mapping[str, Run]:
        return {"commands": self._commands, "command_lockstep": self._lockstep}

    def _deposits(self, count: int) -> list[object]:
        return [self._bank.Deposit(f"acc-{self._chance.randrange(ACCOUNTS)}", 1) for _ in range(count)]

    def _commands(self, count: int) -> Measured:
        deposits = self._deposits(count)
        started = time.perf_counter()
        outcomes = self._store.send_many(deposits)
        seconds = time.perf_counter() - started
        check(outcomes)
        return Measured(count, seconds)

    def _lockstep(self, count: int) -> Measured:
        deposits = self._deposits(count)
        started = time.perf_counter()
        for deposit in deposits:
            self._store.send(deposit)
        return Measured(count, time.perf_counter() - started)
