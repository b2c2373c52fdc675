"""A bank moves money: a domain inside the server, its reactions, and a read model that is queried with SQL.

The domain is docs/examples/bank.py.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Final

import eventstore as es
from demo.server_process import PROGRAM, ServerProcess
from demo.stage import DEADLINE_SECONDS, DemoFailed, Stage, expect, wait_until
from eventstore import blocking
from eventstore.client.blocking.store import BlockingStore

EXAMPLES: Final = Path(__file__).parents[1]
OWNERS: Final = {"acc-1": "Ada", "acc-2": "Grace", "acc-3": "Tony"}
DEPOSITS: Final = 5_000


class BankStory:
    """The scenes, in order."""

    def __init__(self, scratch: Path, stage: Stage) -> None:
        self._stage = stage
        self._server = ServerProcess(scratch, "--domain", "bank:app", cwd=EXAMPLES)
        self._table = scratch / "balances.db"
        self._bank = _bank()
        self._balances: dict[str, int] = dict.fromkeys(OWNERS, 0)

    def run(self) -> None:
        try:
            self._server.start()
            self._stage.say("A server that runs a bank", "eventstore serve --domain bank:app, which is docs/examples/bank.py")
            with blocking.connect(self._server.address) as store:
                self._deposit(store)
                self._transfer(store)
                self._transfer_to_no_account(store)
                self._reject(store)
                self._repeat(store)
            self._project("Balances as a table of SQLite")
            self._restart()
        finally:
            self._server.close()

    def _deposit(self, store: BlockingStore) -> None:
        chance = random.Random(7)
        opening = [self._bank.Open(account, owner) for account, owner in OWNERS.items()]
        deposits = [self._bank.Deposit(chance.choice(list(OWNERS)), chance.randint(1, 100)) for _ in range(DEPOSITS)]
        started = time.perf_counter()
        outcomes = store.send_many([*opening, *deposits])
        seconds = time.perf_counter() - started
        for outcome in outcomes:
            expect(isinstance(outcome, es.Committed) and not outcome.duplicate, f"a command failed: {outcome}")
        for each in deposits:
            self._balances[each.account] += each.cents
        self._stage.say(
            f"{len(outcomes):,} commands for {len(OWNERS)} accounts over TCP",
            f"each handled on its account in memory, each event synced; {len(outcomes) / seconds:,.0f} commands/s",
        )

    def _transfer(self, store: BlockingStore) -> None:
        self._move(
            store,
            "acc-2",
            2_500,
            "A transfer of 25.00: two accounts, so two commits, and a reaction between them",
            [("acc-1", "Sent"), ("acc-2", "Received")],
        )
        self._balances["acc-1"] -= 2_500
        self._balances["acc-2"] += 2_500

    def _transfer_to_no_account(self, store: BlockingStore) -> None:
        self._move(
            store,
            "acc-9",
            1_000,
            "A transfer to an account that was never opened: the money comes back",
            [("acc-1", "Sent"), ("acc-9", "ReceiptRefused"), ("acc-1", "TakenBack")],
        )

    def _move(self, store: BlockingStore, to: str, cents: int, title: str, path: Sequence[tuple[str, str]]) -> None:
        """Sends money from the first account, waits for the last event of the path, and shows all of them."""
        before = int(store.stats()["events"] or 0)

        def moved() -> list[es.Event]:
            return list(store.read_all(before))

        store.send(self._bank.Transfer("acc-1", to, cents), f"to-{to}")
        wait_until(lambda: len(moved()) >= len(path), "the money arrives")
        found = moved()
        expect([(event.aggregate_id, event.type) for event in found] == path, f"other events than expected: {found}")
        self._stage.say(title)
        self._stage.show(
            ("account", "event", "data", "because of"),
            [(event.aggregate_id, event.type, event.data.decode(), event.command_id) for event in found],
        )

    def _reject(self, store: BlockingStore) -> None:
        events = store.stats()["events"]
        try:
            store.send(self._bank.Withdraw("acc-3", cents=10_000_000))
        except es.Rejected as rejected:
            expect(rejected.reason == "not_covered", f"rejected for another reason: {rejected.reason}")
            expect(store.stats()["events"] == events, "a rejected command was stored")
            self._stage.say("A withdrawal that is not covered", f"rejected ({rejected.reason}): {rejected}")
        else:
            raise DemoFailed("a withdrawal that is not covered was accepted")

    def _repeat(self, store: BlockingStore) -> None:
        first = store.send(self._bank.Withdraw("acc-3", cents=500), "withdrawal-1")
        again = store.send(self._bank.Withdraw("acc-3", cents=500), "withdrawal-1")
        self._balances["acc-3"] -= 500
        expect(isinstance(again, es.Committed) and again == first._replace(duplicate=True), f"{again} after {first}")
        self._stage.say("The same command sent twice", f"{first}\n{again}\nthe money was paid out once")

    def _project(self, title: str, *options: str) -> None:
        """Runs `eventstore project`, and shows its table."""
        command = [*PROGRAM, "project", "--projection", "bank:Balances", "--to", f"sqlite:{self._table}", *options]
        result = subprocess.run(
            [*command, "--until-caught-up", "--store", self._server.address],
            check=False,
            capture_output=True,
            text=True,
            cwd=EXAMPLES,
            timeout=DEADLINE_SECONDS,
        )
        expect(result.returncode == 0, f"eventstore project: {result.stderr}")
        more = "".join(f" {option}" for option in options)
        with closing(sqlite3.connect(self._table)) as connection:
            rows = connection.execute("SELECT key, owner, cents, movements FROM balances ORDER BY key").fetchall()
        expect({key: cents for key, _, cents, _ in rows} == self._balances, f"the balances should be {self._balances}: {rows}")
        self._stage.say(title, f"eventstore project --projection bank:Balances --to sqlite:{self._table.name}{more}")
        self._stage.show(("key", "owner", "cents", "movements"), rows)

    def _restart(self) -> None:
        self._server.stop(signal.SIGKILL)
        self._server.start()
        with blocking.connect(self._server.address) as store:
            done = store.send(self._bank.Deposit("acc-2", cents=1))
            repeated = store.send(self._bank.Withdraw("acc-3", cents=500), "withdrawal-1")
        expect(isinstance(repeated, es.Committed) and repeated.duplicate, f"a command was forgotten: {repeated}")
        self._balances["acc-2"] += 1
        self._stage.say("Killed with SIGKILL and started again", f"the accounts are restored when they are needed: {done}")
        self._project("The table continues from its checkpoint", "--from-checkpoint")


def _bank() -> ModuleType:
    """Returns the module of the example, as the server imports it."""
    import sys

    from eventstore.domain.import_path import load

    load("bank:app", EXAMPLES)
    return sys.modules["bank"]
