"""A real server with senders and consumers, killed again and again: no acknowledged message is lost, and none is skipped."""

from __future__ import annotations

import random

import pytest

from tests.server.broker.message_ledger import MessageLedger
from tests.server.conftest import Launch
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.heavy
KIB = 1024


@pytest.mark.parametrize(
    ("seed", "rounds", "chunk_size_bytes"),
    [("small chunks", 5, 96 * KIB), ("large chunks", 3, 16 * 1024 * KIB)],
    ids=["small-chunks", "large-chunks"],
)
def test_no_acknowledged_message_is_lost_and_none_is_skipped(
    launch: Launch, seed: str, rounds: int, chunk_size_bytes: int
) -> None:
    chance = random.Random(seed)
    settings = {
        "broker_chunk_size_bytes": chunk_size_bytes, "broker_preallocate_bytes": 32 * KIB, "broker_retained_chunks_max": 0,
        "broker_recent_messages_max": 100,
    }  # fmt: skip
    server: ServerProcess = launch(**settings)
    ledger = MessageLedger(seed)
    ledger.begin(server.port)
    for _ in range(rounds):
        last = chance.randint(1, 1_500)
        victim = server

        def kill(acknowledged: int, last: int = last, victim: ServerProcess = victim) -> None:
            if acknowledged >= last and ledger.handled:  # on a slow machine senders are far ahead of consumers
                victim.process.kill()

        ledger.run(server.port, kill)
        assert server.process.wait(DEADLINE_SECONDS) == -9
        server = launch(data=server.data, **settings)
        ledger.check(server.port)
    assert ledger.handled
    ledger.check_consumed(server.port)
    assert server.terminate() == 0
