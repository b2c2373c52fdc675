"""A real server with failing system calls: one that kills it, a sync that fails, a full disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import eventstore as es
from tests.server.conftest import Launch
from tests.server.ledger import Ledger
from tests.server.test_kill import verify
from tests.server.tracing import injecting, needs_strace
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, needs_strace]
SMALL_FILES = {"file_size_bytes": 48 * 1024, "preallocate_bytes": 16 * 1024}
FIRST = "events/0000000001.events"


def deadly_calls() -> list[str]:
    """Returns a fault at some call of each kind that changes a disk, in any thread or child of the server."""
    chance = random.Random("deadly")
    often = {"fdatasync": 25, "pwritev2": 30, "rename": 12}
    seldom = {"fsync": 8, "ftruncate": 2, "fallocate": 3, "pwrite64": 4}
    calls = [*often.items(), *seldom.items(), *often.items()]
    return [f"{call}:signal=SIGKILL:when={chance.randint(1, most)}" for call, most in calls]


def test_a_server_killed_at_some_call_loses_nothing_and_neither_does_its_recovery(tmp_path: Path) -> None:
    ledger = Ledger("deadly")
    data = tmp_path / "data"
    deaths = 0
    for fault in deadly_calls():
        with ServerProcess(data, before=injecting(fault), wait=False, **SMALL_FILES) as server:
            wait_until(lambda server=server: server.said("serving") or server.process.poll() is not None, "it starts or dies")
            if server.said("serving"):
                ledger.run(server.address, commits=100)
            deaths += server.terminate() != 0
        assert "Traceback" not in server.log(), f"{fault}: {server.log()}"
    assert deaths >= 5
    with ServerProcess(data, **SMALL_FILES) as server:
        ledger.check(server.address)
        ledger.settle(server.address)
        ledger.check(server.address)
        assert server.terminate() == 0
    verify(data)


@pytest.mark.parametrize("when", ["3", "4+2", "6"])
def test_a_sync_that_fails_ends_the_server_and_nothing_acknowledged_is_lost(launch: Launch, tmp_path: Path, when: str) -> None:
    data = tmp_path / "data"
    ledger = Ledger(f"sync {when}")
    server = launch(data=data, before=injecting(f"fdatasync:error=EIO:when={when}", path=str(data / FIRST)))
    ledger.run(server.address, commits=100_000)
    assert server.wait() == 1
    assert {type(error) for error in ledger.refused} & {es.Poisoned, es.ConnectionLost}
    last = server.log().splitlines()[-1]
    assert last.startswith("error: ")
    assert "Input/output error" in last
    assert "Traceback" not in server.log()
    again = launch(data=data)
    ledger.check(again.address)
    ledger.settle(again.address)
    ledger.check(again.address)
    assert again.terminate() == 0
    verify(data)


def test_appends_that_wait_for_a_failing_sync_get_poisoned(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = launch(data=data, before=injecting("fdatasync:error=EIO:when=3+", path=str(data / FIRST)))
    done: list[es.Committed] = []
    with es.blocking.connect(server.address) as store:

        def append_on() -> None:
            for number in range(100):
                done.append(store.append("a", [es.NewEvent("T", b"%d" % number)], number, f"c-{number}"))

        with pytest.raises(es.Poisoned) as caught:
            append_on()
    assert caught.value.path == str(data / "events")
    assert server.wait() == 1
    again = launch(data=data)
    with es.blocking.connect(again.address) as store:
        found = list(store.read("a"))
        assert [event.data for event in found[: len(done)]] == [b"%d" % number for number in range(len(done))]
        assert len(found) in (len(done), len(done) + 1)  # an unacknowledged commit may be stored or not
        number = len(done)
        outcome = store.append("a", [es.NewEvent("T", b"%d" % number)], number, f"c-{number}")
        assert outcome.version == number + 1
        assert outcome.duplicate == (len(found) > number)


def test_a_full_disk_refuses_appends_until_there_is_space(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = launch(data=data, before=injecting("pwritev2:error=ENOSPC:when=4..8", path=str(data / FIRST)))
    outcomes: list[es.Committed | es.EventStoreError] = []
    expected: list[bytes] = []
    with es.blocking.connect(server.address) as store:
        for number in range(400):  # the calls are counted per thread of the server, which takes the one that is free
            events = [es.NewEvent("T", b"%d" % number)]
            outcomes += store.append_many([es.Commit("a", events, es.ANY, f"c-{number}")])
            if isinstance(outcomes[-1], es.Committed):
                expected.append(events[0].data)
            assert [event.data for event in store.read("a")] == expected
            refused = [outcome for outcome in outcomes if not isinstance(outcome, es.Committed)]
            if refused and all(isinstance(outcome, es.Committed) for outcome in outcomes[-20:]):
                break
    assert refused
    assert {type(error) for error in refused} == {es.StorageFull}
    assert all(error.retriable and error.path == str(data / "events") for error in refused)
    assert all(isinstance(outcome, es.Committed) for outcome in outcomes[-20:])
    assert server.terminate() == 0
    again = launch(data=data)
    with es.blocking.connect(again.address) as store:
        assert [event.data for event in store.read("a")] == expected
        assert [event.version for event in store.read_all()] == list(range(1, len(expected) + 1))
    assert again.terminate() == 0
    verify(data)


def test_a_disk_that_is_full_when_a_file_begins_refuses_appends_and_then_begins_it(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    ledger = Ledger("full")
    second = str(data / "events/0000000002.events.new")
    server = launch(data=data, before=injecting("pwritev2:error=ENOSPC:when=1..2", path=second), **SMALL_FILES)
    ledger.run(server.address, commits=200)
    assert {type(error) for error in ledger.refused} == {es.StorageFull}
    ledger.check(server.address)
    ledger.settle(server.address)
    ledger.check(server.address)
    assert server.terminate() == 0
    verify(data)
