"""A real server killed repeatedly under load: acknowledged commits are stored, byte for byte, and the rest converges."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cli.processes import run
from tests.server.conftest import Launch
from tests.server.ledger import Ledger
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.heavy
KIB = 1024


def verify(data: Path) -> None:
    """`eventstore verify` finds nothing."""
    result = run("verify", data)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("seed", "rounds", "file_size_bytes"),
    [("small files", 7, 48 * KIB), ("large files", 3, 8 * 1024 * KIB)],
    ids=["small-files", "large-files"],
)
def test_acknowledged_commits_survive_a_kill(launch: Launch, seed: str, rounds: int, file_size_bytes: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger(seed)
    settings = {"file_size_bytes": file_size_bytes, "preallocate_bytes": 16 * KIB, "preload_interval_s": 0.1}
    server: ServerProcess = launch(**settings)
    for _ in range(rounds):
        last = chance.randint(1, 300)
        victim = server

        def kill(acknowledged: int, last: int = last, victim: ServerProcess = victim) -> None:
            if acknowledged >= last:
                victim.process.kill()

        ledger.run(server.address, commits=10_000, at=kill)
        assert server.process.wait(DEADLINE_SECONDS) == -9
        server = launch(data=server.data, **settings)
        ledger.check(server.address)
        ledger.settle(server.address)
        ledger.check(server.address)
    assert len(ledger.acknowledged) > 20 * rounds
    assert ledger.seen
    assert server.terminate() == 0
    verify(server.data)
