"""A projector is killed repeatedly while events are appended: each event counts once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import eventstore as es
from eventstore.domain.encoding.event_type import event_type
from tests.examples import EXAMPLES
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

KILLS = 4
EVENTS_BETWEEN = 200
EVENTS_AHEAD = 500
PROJECTOR = """
import sys, anyio
sys.path.insert(0, {examples!r})
import bank, eventstore as es, eventstore.domain as d

async def main():
    async with es.connect({address!r}) as store:
        await d.project(store, bank.Balances(), d.SQLiteTarget({path!r}), events_max=10, until_caught_up={until_caught_up})

anyio.run(main, backend="trio")
"""


class Appender(threading.Thread):
    """Deposits 1 on each of ten accounts, until stopped. Stays at most `EVENTS_AHEAD` events ahead of the projector, because
    the last projector has to catch up.
    """

    def __init__(self, address: str, path: Path) -> None:
        super().__init__(name="appender")
        self._address = address
        self._path = path
        self.stopped = threading.Event()
        self.deposits = 0

    def run(self) -> None:
        import bank

        deposited = event_type(bank.Deposited).encode(bank.Deposited(1))
        with es.blocking.connect(self._address) as store:
            while not self.stopped.is_set():
                while 10 * self.deposits > checkpoint(self._path) + EVENTS_AHEAD and not self.stopped.wait(0.01):
                    pass
                store.append_many([es.Commit(f"acc-{number}", [deposited], es.ANY) for number in range(10)])
                self.deposits += 1


def checkpoint(path: Path) -> int:
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    except sqlite3.OperationalError:
        return 0
    try:
        row = connection.execute("SELECT sequence FROM eventstore_checkpoints").fetchone()
        return 0 if row is None else int(row[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


@pytest.mark.heavy
def test_each_event_counts_once_however_often_the_projector_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with ServerThread(tmp_path / "store") as server:

        def projector(until_caught_up: bool) -> subprocess.Popen[bytes]:
            source = PROJECTOR.format(
                examples=str(EXAMPLES), address=server.address, path=str(path), until_caught_up=until_caught_up
            )
            return subprocess.Popen([sys.executable, "-W", "error", "-c", source])

        appender = Appender(server.address, path)
        appender.start()
        try:
            for _ in range(KILLS):
                before = checkpoint(path)
                process = projector(until_caught_up=False)
                try:
                    wait_until(lambda before=before: checkpoint(path) > before + EVENTS_BETWEEN, "the projector is on its way")
                finally:
                    process.kill()
                    process.wait(DEADLINE_SECONDS)
        finally:
            appender.stopped.set()
            appender.join()
        assert projector(until_caught_up=True).wait(DEADLINE_SECONDS) == 0
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT key, cents, movements FROM balances ORDER BY key").fetchall()
    connection.close()
    assert found == [(f"acc-{number}", appender.deposits, appender.deposits) for number in range(10)]
    assert checkpoint(path) == 10 * appender.deposits
