"""What the console of a node with a domain shows of an aggregate: its state, which the node itself folds."""

from __future__ import annotations

from pathlib import Path

import pytest

import bank
from eventstore import blocking
from tests.cluster.node_process import NodeProcess
from tests.console.http import Visitor

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("examples")]


def test_the_state_of_aggregates_of_each_shard_is_shown_at_any_version(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2, domain="bank:app") as node:
        with blocking.connect(node.address) as store:
            accounts = [
                next(f"acc-{n}" for n in range(100) if store.cluster_map().owner_of(f"acc-{n}") == shard) for shard in (0, 1)
            ]
            for place, account in enumerate(accounts):
                store.send_many([bank.Open(account, "Ada"), bank.Deposit(account, 500), bank.Deposit(account, 70 + place)])
        visitor = Visitor(node.http)
        for place, account in enumerate(accounts):
            newest = visitor.get(f"/console/aggregates/one?id={account}").words
            assert "State at version 3: Account" in newest
            assert f"balance {570 + place}" in newest
            assert "balance 500" in visitor.get(f"/console/aggregates/one?id={account}&state=2").words
        assert "State at" not in visitor.get("/console/aggregates/one?id=acc-none").words
        assert node.terminate() == 0


def test_a_domain_that_cannot_be_loaded_any_more_is_said_in_place_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code" / "changing.py"
    code.parent.mkdir()
    code.write_text("from bank import app\n")
    monkeypatch.setenv("PYTHONPATH", str(code.parent), prepend=":")
    with NodeProcess(tmp_path / "data", 1, domain="changing:app") as node:
        with blocking.connect(node.address) as store:
            store.send(bank.Open("acc-1", "Ada"))
        code.write_text("from bank import <app>\n")
        page = Visitor(node.http).get("/console/aggregates/one?id=acc-1")
        assert "importing 'changing' raised SyntaxError" in page.words
        assert "Opened" in page.words
        code.write_text("from bank import app\n")
        assert "State at version 1: Account" in Visitor(node.http).get("/console/aggregates/one?id=acc-1").words
        assert node.terminate() == 0
