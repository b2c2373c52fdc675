"""A domain in a worker, on a server without one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import DEADLINE_SECONDS, Server, fork, output, refused, wait_for
from tests.logged_process import logged_lines

pytestmark = pytest.mark.usefixtures("examples")
Serve = Callable[..., Server]
Work = Callable[..., "Worker"]


class Worker:
    """Runs `eventstore work` on a free port of the loopback interface."""

    def __init__(self, store: str, log: Path, *options: object) -> None:
        self._log = log
        with open(log, "wb") as out:
            self.process = fork(
                "work", "--domain", "bank:app", "--store", store, "--listen", "127.0.0.1:0", "--log-format", "json", *options,
                stdout=out, stderr=out,
            )  # fmt: skip
        wait_for(lambda: self.said("working") or self.process.poll() is not None, "the worker starts")
        working = self.said("working")
        assert working is not None, log.read_text()
        self.address = str(working["address"])

    def said(self, event: str) -> dict[str, Any] | None:
        return next((line for line in logged_lines(self._log) if line["event"] == event), None)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """Starts workers, and ends them with the test."""
    workers: list[Worker] = []

    def begin(store: str, *options: object) -> Worker:
        workers.append(Worker(store, tmp_path / f"{uuid.uuid4().hex}.log", *options))
        return workers[-1]

    yield begin
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait(DEADLINE_SECONDS)


def send(worker: Worker, command: str, **fields: object) -> str:
    return output("send", "--domain", "bank:app", command, json.dumps(fields), store=worker.address)


def types(server: Server, account: str) -> list[str]:
    lines = output("read", account, "--json", store=server.store).splitlines()
    return [json.loads(each)["event_type"] for each in lines]


def test_commands_are_handled_here_and_stored_there(serve: Serve, work: Work) -> None:
    server = serve()
    worker = work(server.store)
    send(worker, "Open", account="acc-1", owner="Ada")
    assert send(worker, "Deposit", account="acc-1", cents=100) == "acc-1 is at version 2 (sequence 2)\n"
    assert types(server, "acc-1") == ["Opened", "Deposited"]
    assert "a worker accepts only commands" in refused("read", "acc-1", store=worker.address)
    assert worker.said("the domain's reactions do not run here; start one worker with --checkpoint FILE to run them")
    worker.process.terminate()
    assert worker.process.wait(DEADLINE_SECONDS) == 0


def test_a_worker_with_a_checkpoint_runs_the_reactions(serve: Serve, work: Work, tmp_path: Path) -> None:
    server, checkpoint = serve(), tmp_path / "reactions.json"
    worker = work(server.store, "--checkpoint", checkpoint)
    for account in ("acc-1", "acc-2"):
        send(worker, "Open", account=account, owner="Ada")
    send(worker, "Deposit", account="acc-1", cents=100)
    send(worker, "Transfer", account="acc-1", to="acc-2", cents=40)
    wait_for(lambda: types(server, "acc-2") == ["Opened", "Received"], "the money arrives")
    worker.process.terminate()
    assert worker.process.wait(DEADLINE_SECONDS) == 0
    assert checkpoint.exists()


def test_two_workers_of_the_same_aggregates_resolve_their_conflicts(serve: Serve, work: Work) -> None:
    server = serve()
    both = [work(server.store), work(server.store)]
    send(both[0], "Open", account="acc-1", owner="Ada")
    for place in range(4):
        send(both[place % 2], "Deposit", account="acc-1", cents=1)
    assert types(server, "acc-1") == ["Opened", *["Deposited"] * 4]
    assert "rejected (not_covered): account acc-1 has 4" in refused(
        "send", "--domain", "bank:app", "Withdraw", '{"account": "acc-1", "cents": 5}', store=both[1].address
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--domain", "treasury:app"], "module 'treasury' was not found", 2),
        (["--domain", "bank:app", "--store", "tcp://127.0.0.1:1", "--wait", "0"], "127.0.0.1:1", 1),
        (["--domain", "bank:app", "--store", "tcp://127.0.0.1:1", "--listen", "nowhere"], "listen is 'nowhere'", 2),
        (["--domain", "bank:app", "--config", "missing.toml"], "missing.toml", 2),
        (["--domain", "bank:app", "--checkpoint", "missing/reactions.json"], "no folder missing for the checkpoint", 2),
    ],
)
def test_a_worker_that_cannot_start_reports_why(options: list[str], words: str, code: int) -> None:
    assert words in refused("work", *options, code=code)
