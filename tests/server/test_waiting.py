"""Processes that wait for their store: a signal ends them."""

from __future__ import annotations

import math
import signal
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.server.outbox.relay import relay
from eventstore.server.work.worker import run as run_worker
from eventstore.settings.sources import load_settings
from tests.examples import EXAMPLES
from tests.logged_process import EVENTSTORE
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

PROJECTION = ("--projection", "bank:Balances", "--to", "sqlite:/nowhere/rows.db")
NOBODY = "tcp://127.0.0.1:1"
WORKER = load_settings(None, domain="tests.server.commands.tallies:app", listen="127.0.0.1:0")


@pytest.mark.parametrize(
    "run",
    [
        partial(run_worker, WORKER, NOBODY, None, math.inf),
        partial(relay, NOBODY, NOBODY, "events", wait_s=math.inf),
    ],
    ids=["worker", "relay"],
)
async def test_a_signal_ends_waiting_for_the_server(run: Callable[[], Awaitable[object]]) -> None:
    usual = signal.getsignal(signal.SIGTERM)

    async def listens() -> bool:
        return signal.getsignal(signal.SIGTERM) != usual

    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await eventually(listens, "it listens to signals")
            signal.raise_signal(signal.SIGTERM)


async def test_wrong_arguments_are_refused_without_waiting(tmp_path: Path) -> None:
    told = r"there is no folder .*/absent for the checkpoint; create it"
    with trio.fail_after(DEADLINE_SECONDS), pytest.raises(es.InvalidArgument, match=told):
        await relay(NOBODY, NOBODY, "events", tmp_path / "absent" / "place.json", wait_s=math.inf)


@pytest.mark.parametrize("arguments", [("publish", "--topic", "t", "--from"), ("project", *PROJECTION, "--store")])
def test_a_run_stopped_before_it_caught_up_exits_with_an_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command = [*EVENTSTORE, *arguments, NOBODY, "--until-caught-up", "--wait", "60"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=EXAMPLES)
    try:
        wait_until(lambda: b"waiting" in (tmp_path / "log").read_bytes(), "it waits")
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 130
    finally:
        process.kill()
        process.wait(DEADLINE_SECONDS)
