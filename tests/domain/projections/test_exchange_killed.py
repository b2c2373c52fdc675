"""Processes that exchange a table are killed: at each statement, and at any moment while others write and read. There is a
whole table under the name all the time, and what is begun again goes on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections.projection import Projection
from tests.domain.projections.conftest import Place
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

EVENTS = 40
EVENTS_AHEAD = 300
KILLS = 3
PROCESS = """
import os, signal, sys, anyio
import eventstore as es, eventstore.domain as d
from tests.domain.projections.test_exchange_killed import Counts
from tests.domain.projections.killed_statements import count_statements

statements = {statements}
if statements:
    count_statements(statements)

async def main():
    async with es.connect({address!r}) as store:
        target = d.target_at({target!r})
        exchange = d.Exchange() if {exchange} else None
        await d.project(store, Counts({version}), target, events_max=7, until_caught_up={ends}, exchange=exchange)

anyio.run(main, backend="trio")
"""


class Counts(Projection[int]):
    """Each event adds the version to its row: so the rows of a table have its sequence times its version in all."""

    name = "counts"
    columns: ClassVar[dict[str, Any]] = {"total": int}

    def __init__(self, version: int) -> None:
        self.version = version  # type: ignore[misc] # one class for both
        super().__init__()

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: es.Event) -> int:
        return state + self.version

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"total": state}


def process(
    server: ServerThread, place: Place, version: int, *, exchange: bool, ends: bool = True, statements: int = 0
) -> subprocess.Popen[bytes]:  # fmt: skip
    source = PROCESS.format(
        address=server.address, target=place.address, version=version, exchange=exchange, ends=ends, statements=statements
    )
    return subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.DEVNULL)


def whole(place: Place) -> tuple[int, int]:
    """Checks that the served table has all events up to its checkpoint, as its version counts them. Returns both."""
    ((version, sequence, total),) = place.query(
        "SELECT c.version, c.sequence, (SELECT COALESCE(sum(total), 0) FROM counts) "
        "FROM eventstore_checkpoints c WHERE c.projection = 'counts'"
    )
    assert total == version * sequence, f"version {version} at {sequence} counts {total}"
    return version, sequence


@pytest.mark.heavy
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
async def test_a_process_that_is_killed_at_any_statement_leaves_a_whole_table_and_the_next_one_goes_on(
    place: Place, tmp_path: Path, every: int
) -> None:  # fmt: skip
    with ServerThread(tmp_path / "store") as server:
        async with es.connect(server.address) as store:
            await store.append_many(
                [es.Commit(f"c-{number % 9}", [es.NewEvent("A", b"1")], es.ANY) for number in range(EVENTS)]
            )

            async def run(version: int) -> None:
                await d.project(store, Counts(version), place.target(), until_caught_up=True, exchange=d.Exchange())
                assert whole(place) == (version, EVENTS)

            await run(1)
            outcomes = list[int]()
            for statements in range(1, 1_000, every):
                code = process(server, place, 2, exchange=True, statements=statements).wait(DEADLINE_SECONDS)
                version, sequence = whole(place)
                assert sequence == EVENTS
                outcomes.append(version)
                await run(2)
                if code == 0:
                    break
                assert code == -signal.SIGKILL
                await run(1)
                place.change('DROP TABLE "counts:2"')  # the next one builds it again
                place.change("DELETE FROM eventstore_checkpoints WHERE projection = 'counts:2'")
        assert outcomes == sorted(outcomes)
        assert set(outcomes) == {1, 2}


@pytest.mark.heavy
def test_readers_see_a_whole_table_while_two_versions_are_killed_in_turns(place: Place, tmp_path: Path) -> None:
    stopped, events = threading.Event(), [0]
    with ServerThread(tmp_path / "store") as server:

        def append() -> None:
            with es.blocking.connect(server.address) as store:
                while not stopped.is_set():
                    store.append_many([es.Commit(f"c-{key}", [es.NewEvent("A", b"1")], es.ANY) for key in range(10)])
                    events[0] += 10
                    while events[0] > seen[1] + EVENTS_AHEAD and not stopped.wait(0.01):
                        pass

        seen = (1, 0)

        def look() -> tuple[int, int]:
            nonlocal seen
            version, sequence = whole(place)
            if version == seen[0]:
                assert sequence >= seen[1]
            assert sequence >= seen[1], "a reader has seen more before"
            seen = version, sequence
            return seen

        def is_served(wanted: int, beyond: int) -> bool:
            version, sequence = look()
            return version == wanted and sequence > beyond

        first = process(server, place, 1, exchange=False, ends=False)
        wait_until(lambda: "counts" in place.tables(), "the first has begun")
        appender = threading.Thread(target=append)
        appender.start()
        old = first
        try:
            for turn in range(KILLS):
                version = 2 - turn % 2
                before = look()[1]
                for _ in range(2):  # killed on its way, somewhere
                    new = process(server, place, version, exchange=True, ends=False)
                    wait_until(lambda before=before: look()[1] > before + 50, "it is on its way")
                    new.kill()
                    new.wait(DEADLINE_SECONDS)
                    before = look()[1]
                    if old.poll() is not None:  # it was fenced: the other had taken over
                        break
                new = process(server, place, version, exchange=True, ends=False)
                wait_until(lambda version=version, before=before: is_served(version, before), "it is served")
                assert old.wait(DEADLINE_SECONDS) == 1
                old = new
        finally:
            stopped.set()
            appender.join()
            old.kill()
            old.wait(DEADLINE_SECONDS)
