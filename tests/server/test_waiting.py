"""A process that waits for the store it is about ends at a signal, as it would later."""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.server.relaying import relay
from eventstore.server.settings import ServerSettings
from eventstore.server.work import run as run_worker
from tests.waiting import DEADLINE_SECONDS, eventually

NOBODY = "tcp://127.0.0.1:1"
WORKER = ServerSettings(domain="tests.server.tallies:app", listen="127.0.0.1:0")


@pytest.mark.parametrize(
    "run",
    [
        partial(run_worker, WORKER, NOBODY, None, math.inf),
        partial(relay, NOBODY, NOBODY, "events", wait_s=math.inf),
    ],
    ids=["worker", "relay"],
)
async def test_a_signal_ends_the_waiting(run: Callable[[], Awaitable[object]]) -> None:
    usual = signal.getsignal(signal.SIGTERM)

    async def listens() -> bool:
        return signal.getsignal(signal.SIGTERM) != usual

    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await eventually(listens, "it listens to signals")
            signal.raise_signal(signal.SIGTERM)


async def test_what_is_wrong_by_itself_is_refused_without_waiting(tmp_path: Path) -> None:
    told = r"there is no folder .*/absent for the checkpoint; create it"
    with trio.fail_after(DEADLINE_SECONDS), pytest.raises(es.InvalidArgument, match=told):
        await relay(NOBODY, NOBODY, "events", tmp_path / "absent" / "place.json", wait_s=math.inf)
