"""Snapshots of aggregates in a running server, and in a worker: they are used, counted, compared and deleted."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from eventstore.domain.snapshots.snapshots import SWITCHED_OFF
from eventstore.server.bootstrap import held_snapshots
from tests.cli.processes import run
from tests.server.commands.domain_hosts import DomainHost
from tests.server.commands.long_lists import AddLines, Drip, Tick
from tests.server.conftest import Begin
from tests.server_thread import ServerThread
from tests.waiting import wait_until

DOMAIN = "tests.server.commands.long_lists:app"
CLOCK = "tests.server.commands.long_lists.Clock"


def numbers(running: DomainHost, aggregate_id: str) -> list[int]:
    return [event.json()["number"] for event in running.events(aggregate_id)]


def until(store: BlockingStore, figure: str, least: int = 1) -> None:
    wait_until(lambda: int(store.stats()[figure] or 0) >= least, figure)  # type: ignore[arg-type] # it is a number


def test_a_long_aggregate_is_restored_from_its_snapshot_and_what_came_after(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=10)
    with running.connect() as store:
        store.send(AddLines("a", 25))
        running.restart()  # it is written as the mailboxes end
        for lines in (3, 7, 1):
            store.send(AddLines("a", lines))
            running.restart()
        store.send(AddLines("a", 1))
        stats = store.stats()
        assert (stats["snapshots_used"], stats["snapshots"], stats["snapshots_damaged"]) == (1, 1, 0)
        until(store, "snapshots_compared")
        assert store.stats()["snapshots_switched_off"] == 0
    assert numbers(running, "a") == list(range(37))


def test_an_evicted_aggregate_gets_a_snapshot(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=10, aggregates_max=1)
    with running.connect() as store:
        for number in range(4):
            for name in range(6 * running.shards):
                store.send(AddLines(f"a-{name}", 8))
            if number == 1:
                until(store, "snapshots_written", 3)
        stats = store.stats()
        assert int(stats["snapshots_used"] or 0) > 0  # type: ignore[arg-type] # it is a number
        assert stats["snapshots_foreign"] == stats["snapshots_outdated"] == stats["snapshots_unwritable"] == 0
    assert all(numbers(running, f"a-{name}") == list(range(32)) for name in range(6 * running.shards))


def test_others_that_write_to_the_store_are_not_missed(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=10)
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        store.send(AddLines("a", 25))
        running.restart()
        other.append("a", [es.NewEvent("LineAdded", {"number": 25})], es.ANY)
        store.send(AddLines("a", 1))
        assert store.stats()["snapshots_used"] == 1
    assert numbers(running, "a") == list(range(27))


def test_they_may_be_deleted_while_nothing_runs(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=10)
    with running.connect() as store:
        store.send(AddLines("a", 25))
        running.restart()
        store.send(AddLines("a", 1))
        assert store.stats()["snapshots_used"] == 1
        running.begin_to_stop()
        running.join()
    shutil.rmtree(running.snapshots)
    running.start()
    with running.connect() as store:
        store.send(AddLines("a", 1))
        until(store, "snapshots_written")  # since it was replayed
    assert numbers(running, "a") == list(range(27))


def test_they_can_be_switched_off(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=0, aggregates_max=1)
    with running.connect() as store:
        store.send(AddLines("a", 5_000))
        running.restart()
        store.send(AddLines("a", 1))
        assert "snapshots_written" not in store.stats()
    assert not running.snapshots.exists() or not list(running.snapshots.glob("*.snapshot"))


def test_a_fold_that_is_not_deterministic_raises_an_alarm_that_names_it(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=10, http="127.0.0.1:0", alarm_interval_s=0.05, alarm_quiet_s=0)
    with running.connect() as store:
        store.send(Tick("c", 25))
        store.send(AddLines("a", 25))
        running.restart()
        store.send(Tick("c", 1))
        store.send(AddLines("a", 1))
        until(store, "alarms_raised")
        (alarm,) = [each for each in store.alarms.list() if each.state == "raised"]
        assert (alarm.name, alarm.subject) == ("snapshot_differs", f"aggregate=c, attribute=at, class={CLOCK}")
        said = str(store.stats()["attention"])
        assert said.startswith(
            f"a snapshot is not what a full replay gives: {CLOCK}, aggregate 'c', attribute at; snapshots of"
        )
        with urllib.request.urlopen(f"{running.http}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert f'eventstore_snapshot_differs{{aggregate="c",attribute="at",class="{CLOCK}"}} 1' in text
        wait_until(lambda: (running.snapshots / SWITCHED_OFF).exists(), "it is written down")
        running.restart()
        until(store, "snapshots_switched_off")
        store.send(Tick("c", 1))
        store.send(AddLines("a", 1))  # of another class
        assert store.stats()["snapshots_used"] == 1
    assert list(json.loads((running.snapshots / SWITCHED_OFF).read_text())["classes"]) == [CLOCK]


def test_state_that_came_without_an_event_leaves_memory_once_it_is_noticed(host: Begin) -> None:
    running = host(domain=DOMAIN, snapshot_events=10, aggregates_max=1)
    with running.connect() as store:
        store.send(Drip("a", 25, without_event=1))
        for name in range(8 * running.shards**2):
            store.send(AddLines(f"b-{name}", 1))  # so that it is evicted as it is
        until(store, "snapshots_written")
        until(store, "snapshots_switched_off")
        store.send(Drip("a", 1))
    assert numbers(running, "a") == list(range(26))


def test_a_rejection_does_not_read_the_store(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        store.send(AddLines("a", 25))
        for _ in range(2):
            with pytest.raises(es.Rejected):
                store.send(AddLines("a", 1, most=5))
        store.send(AddLines("a", 1))
        before = store.stats()["aggregates_restored"]
        for number in range(10):
            with pytest.raises(es.Rejected):
                store.send(AddLines("a", 1, most=5))
            store.send(AddLines("a", number))
        after = store.stats()["aggregates_restored"]
        assert after == before or running.is_worker  # which others may write beside, so it asks
    assert numbers(running, "a") == list(range(26 + 45))


def test_two_workers_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    with held_snapshots(folder):
        with pytest.raises(es.FolderRefused, match=r"snapshots: in use by process"), held_snapshots(folder):
            pass
    with held_snapshots(folder):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(es.FolderRefused, match=r"file: cannot be used for snapshots"), held_snapshots(tmp_path / "file"):
        pass


def test_verification_and_backups_pass_over_them(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    with ServerThread(data, domain=DOMAIN, snapshot_events=10) as server, es.blocking.connect(server.address) as store:
        store.send(AddLines("a", 25))
        server.stop_servers()
        server.start_servers()
        store.send(AddLines("a", 1))
        assert run("backup", place, store=server.address).returncode == 0
    assert list((data / "snapshots").glob("*.snapshot"))
    assert not [path for path in place.rglob("*") if "snapshot" in path.name]
    assert run("verify", data).returncode == 0
    assert run("restore", place, tmp_path / "again").returncode == 0
    assert not (tmp_path / "again" / "snapshots").exists()
