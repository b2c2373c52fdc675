"""Reactions of a node: what they send to aggregates of other shards arrives there, and takes effect once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import bank
from eventstore import blocking
from tests.cluster.node_process import NodeProcess, kill_process
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("examples")]
ACCOUNTS = [f"acc-{number}" for number in range(40)]
OPENING = 1_000


def open_accounts(address: str) -> None:
    with blocking.connect(address) as store:
        store.send_many([bank.Open(each, "Ada") for each in ACCOUNTS])
        store.send_many([bank.Deposit(each, OPENING) for each in ACCOUNTS])


def balances(address: str) -> dict[str, int]:
    """Returns what is on each account, of what its events say."""
    signs = {"Deposited": 1, "Withdrawn": -1, "Sent": -1, "Received": 1, "TakenBack": 1}
    found = dict.fromkeys(ACCOUNTS, 0)
    with blocking.connect(address) as store:
        for event in store.read_all():
            if event.type in signs:
                found[event.aggregate_id] += signs[event.type] * event.json()["cents"]
    return found


def finished(address: str) -> bool:
    """Whether each transfer that was sent has been received, or returned."""
    with blocking.connect(address) as store:
        types = [event.type for event in store.read_all()]
    return types.count("Sent") == types.count("Received") + types.count("TakenBack")


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.long), True], ids=["calm", "killed"])
def test_transfers_between_accounts_of_different_shards_take_effect_once(tmp_path: Path, killed: bool) -> None:
    rng = random.Random(7)
    with NodeProcess(tmp_path / "data", 3, domain="bank:app") as node:
        open_accounts(node.address)
        with blocking.connect(node.address) as store:
            for batch in range(6):
                store.send_many([bank.Transfer(rng.choice(ACCOUNTS), rng.choice([*ACCOUNTS, "nobody"]), 1) for _ in range(50)])
                if killed and batch % 2:
                    pid = node.rows()[batch % 3].pid
                    kill_process(pid)
        wait_until(lambda: finished(node.address), "every transfer has ended")
        found = balances(node.address)
        assert sum(found.values()) == OPENING * len(ACCOUNTS)
        assert len({*found.values()}) > 1
        wait_until(lambda: node.health()["degraded"] is False, "no reaction waits or is parked")
        assert node.terminate() == 0
