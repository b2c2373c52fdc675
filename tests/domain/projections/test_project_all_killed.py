"""A process with several projections is killed repeatedly while events are appended: each table is as a fresh fold makes it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections.projection import Projection
from tests.domain.projections.conftest import Place
from tests.domain.projections.test_project_all import Parking, Sums, append
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

KILLS = 4
EVENTS_BETWEEN = 150
EVENTS_AHEAD = 300
PROJECTOR = """
import sys, anyio
import eventstore as es, eventstore.domain as d
from tests.domain.projections.test_project_all_killed import tables

async def main():
    async with es.connect({address!r}) as store:
        pairs = [(each, d.target_at({target!r})) for each in tables({count})]
        await d.project_all(store, pairs, events_max=10, until_caught_up={until_caught_up})

anyio.run(main, backend="trio")
"""


def tables(count: int) -> list[Projection[int]]:
    """The last ones are added later."""
    return [
        Sums("of_a", ["A"]),
        Sums("of_b", ["B"]),
        Sums("of_none", ["None"]),
        Parking("parks"),
        Sums("by_prefix", ["A", "B"], "a-1"),
        Sums("later", ["A", "B"]),
    ][:count]


class Appender(threading.Thread):
    """Appends until stopped. Stays at most `EVENTS_AHEAD` events ahead of the slowest, because the last run has to catch up."""

    def __init__(self, address: str) -> None:
        super().__init__(name="appender")
        self._address = address
        self.stopped = threading.Event()
        self.done = 0
        self.events = 0

    def run(self) -> None:
        with es.blocking.connect(self._address) as store:
            while not self.stopped.is_set():
                while self.events > self.done + EVENTS_AHEAD and not self.stopped.wait(0.01):
                    pass
                commits = [es.Commit(f"a-{key}", [es.NewEvent(type, b"3")], es.ANY) for key in range(12) for type in "AB"]
                commits.append(es.Commit(f"c-{self.events}", [es.NewEvent("C", b"-1" if self.events % 4 else b"1")], es.ANY))
                store.append_many(commits)
                self.events += len(commits)


@pytest.mark.heavy
async def test_each_table_is_as_a_fresh_fold_makes_it_however_often_the_process_is_killed(
    place: Place, tmp_path: Path
) -> None:  # fmt: skip
    with ServerThread(tmp_path / "store") as server:

        def places() -> list[int]:
            if "eventstore_checkpoints" not in place.tables():
                return [0]
            return [sequence for (sequence,) in place.query("SELECT sequence FROM eventstore_checkpoints")] or [0]

        def projector(count: int, *, until_caught_up: bool) -> subprocess.Popen[bytes]:
            source = PROJECTOR.format(
                address=server.address, target=place.address, count=count, until_caught_up=until_caught_up
            )
            return subprocess.Popen([sys.executable, "-W", "error", "-c", source])

        def has_moved(before: int) -> bool:
            found = places()
            appender.done = max(found)
            return max(found) > before + EVENTS_BETWEEN

        appender = Appender(server.address)
        appender.start()
        try:
            for _ in range(KILLS):
                before, process = max(places()), projector(5, until_caught_up=False)
                try:
                    wait_until(lambda before=before: has_moved(before), "the projector is on its way")
                finally:
                    process.kill()
                    process.wait(DEADLINE_SECONDS)
        finally:
            appender.stopped.set()
            appender.join()
        assert projector(6, until_caught_up=True).wait(DEADLINE_SECONDS) == 0
        async with es.connect(server.address) as store:
            await append(store, "last", "A", 1)
            for projection in tables(6):
                fresh, name = d.SQLiteTarget(tmp_path / "fresh.db"), projection.name
                await d.project(store, projection, fresh, until_caught_up=True)
                await d.project(store, projection, place.target(), until_caught_up=True)
                fresh.open(projection)
                rows = f"SELECT key, total, events FROM {name} ORDER BY key"
                connection = fresh._open()
                assert place.query(rows) == connection.execute(rows).fetchall()
                parked = f"SELECT key, sequence FROM eventstore_parked WHERE projection = '{name}' ORDER BY key"
                if projection.on_failure == "park":
                    assert place.query(parked) == connection.execute(parked).fetchall() != []
                fresh.close()
        assert set(places()) == {appender.events + 1}
