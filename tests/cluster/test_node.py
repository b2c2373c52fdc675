"""A node with real processes: it serves its shards, survives their death, and leaves nothing behind when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from eventstore import ANY, Commit, Committed, NewEvent, RawCommand, StorageFull, blocking
from eventstore.chunks.files import OsFiles
from eventstore.cli.dashboard.dashboard import print_dashboard
from eventstore.cli.dashboard.server_snapshot import take_snapshot
from eventstore.client.address import parse_addresses
from eventstore.client.blocking.broker import BlockingBroker
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.streams import open_read
from eventstore.client.options import ClientOptions
from eventstore.client.session.command_rows import encode_command
from eventstore.errors import ConnectionLost, Elsewhere, EventStoreError, InvalidArgument, Poisoned
from eventstore.position import Position
from eventstore.protocol.requests import Stats, Version
from eventstore.records.cursors import AggregateCursor, LogCursor
from eventstore.records.raw_commit import encode_commit
from eventstore.records.slots import slot_of
from eventstore_cluster.entry import shard_addresses
from eventstore_cluster.nodes.adopting.adopted_folder import adopted_folder
from eventstore_cluster.shard_start import PORTS_BELOW
from eventstore_cluster.status import cluster_status
from tests.cli.processes import output, refused, run
from tests.cluster.node_process import NodeProcess, kill_process, wait_until_ended
from tests.cluster.test_routing import free_address
from tests.ports import free_port
from tests.server.ledger import Ledger
from tests.server.test_kill import verify
from tests.server.tracing import injecting, needs_strace
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.heavy
EVENT = NewEvent("Happened", b"1")


def ids_of(shard: int, count: int = 1) -> list[str]:
    """Returns ids whose slots belong to this one of two shards."""
    found = [f"a-{number}" for number in range(4 * count + 40)]
    return [each for each in found if (slot_of(each) >= 2048) == bool(shard)][:count]


def append_to(node: NodeProcess, shard: int, aggregate_id: str) -> None:
    with blocking.connect(node.shard_address(shard)) as store:
        store.append(aggregate_id, [EVENT], ANY)


@pytest.mark.long
def test_stats_waits_until_all_shards_serve_or_says_which_do_not(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        pid = node.rows()[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            said = refused("stats", "--wait", 0.5, store=node.address)
            assert said.startswith("shard 1 does not serve within 0.5 s: ")
            assert run("stats", store=node.address).stderr.startswith("\nthis is a node; ")
        finally:
            os.kill(pid, signal.SIGCONT)
        output("stats", "--wait", DEADLINE_SECONDS, store=node.address)
        assert [row.error for row in node.rows()] == [None, None]


def test_a_node_serves_its_shards_and_tells_where_they_are(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        assert sorted(node.shard_pids()) == sorted(row.pid or 0 for row in node.rows())
        assert [Path(f"/proc/{row.pid}/comm").read_text() for row in node.rows()] == ["shard-0\n", "shard-1\n"]
        append_to(node, 0, ids_of(0)[0])
        found = json.loads(output("cluster", "status", "--json", "--interval", 0, store=node.address))
        shown = [(row["shard"], row["slots"], row["epoch"], row["events"]) for row in found["shards"]]
        assert shown == [(0, "0-2047", 1, 1), (1, "2048-4095", 1, 0)]
        of_a_shard = json.loads(output("cluster", "status", "--json", "--interval", 0, store=node.shard_address(1)))
        assert [row["leader"] for row in of_a_shard["shards"]] == [row["leader"] for row in found["shards"]]
        assert "0–2047" in output("cluster", "status", store=node.address)
        assert "2048–4095" in output("cluster", "top", "--interval", 0.1, store=node.address)
        looked = json.loads(output("cluster", "top", "--json", "--once", "--interval", 0.1, store=node.address))
        assert [row["pid"] for row in looked["shards"]] == [row["pid"] for row in found["shards"]]
        assert node.terminate() == 0
        assert len(node.said("stopped")) == 3


def test_the_address_of_a_node_stores_nothing_and_a_shard_only_what_it_owns(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        own = ids_of(1)[0]
        with BlockingConnection(parse_addresses(node.address), ClientOptions()) as entry:  # as a client that does not route
            commit, command = encode_commit(own, [EVENT], ANY, None, None), encode_command(RawCommand("X", own, b"{}"), None)
            asked: list[Any] = [
                lambda: entry.put(entry.session.appends, commit), lambda: entry.put(entry.session.sends, command),
                lambda: list(open_read(entry, AggregateCursor(own, 1, None, False, None))),
                lambda: list(open_read(entry, LogCursor(0, None))),
                lambda: entry.call(Version(own)), BlockingBroker(entry).topics,
            ]  # fmt: skip
            for ask in asked:
                with pytest.raises(Elsewhere) as refused_there:
                    ask()
                assert refused_there.value.fields["slot"] is None
            assert entry.call(Stats())["shards_serving"] == 2
        with pytest.raises(Elsewhere):
            append_to(node, 0, own)
        append_to(node, 1, own)
        wait_until(lambda: [row.events for row in node.rows()] == [0, 1], "the map says where it is")


def test_a_killed_node_leaves_no_process_and_its_successor_has_every_event(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 2) as node:
        append_to(node, 0, ids_of(0)[0])
        pids = node.shard_pids()
        os.kill(node.pid, signal.SIGKILL)
        with NodeProcess(data) as successor:  # while the shards still stop
            wait_until_ended(pids)
            assert {line["shard"] for line in node.said("stopped")} == {0, 1}
            assert [row.events for row in successor.rows()] == [1, 0]
            assert successor.terminate() == 0


def test_a_shard_that_dies_is_started_again_while_the_other_serves(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        append_to(node, 0, ids_of(0)[0])
        address, pid = node.shard_address(1), node.rows()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with blocking.connect(address) as other:  # while the first one is neither alive nor dead
            other.append(ids_of(1)[0], [EVENT], ANY)
        kill_process(pid)
        wait_until(lambda: node.said("a shard has ended and is started again"), "the node notices")
        node.wait_for_pid(0, other_than=pid)
        assert [row.events for row in node.rows()] == [1, 1]
        said = node.said("a shard has ended and is started again")
        assert [line["shard"] for line in said] == [0]
        assert "SIGKILL; it could not say why" in said[0]["error"]
        assert node.terminate() == 0


def test_what_a_shard_acknowledged_before_it_was_killed_is_there_when_it_serves_again(tmp_path: Path) -> None:
    chance, ledger = random.Random("shard"), Ledger("shard")
    with NodeProcess(tmp_path / "data", 1, file_size_bytes=48 * 1024, preallocate_bytes=16 * 1024) as node:
        address = node.shard_address(0)
        for _ in range(3):
            pid, last = node.rows()[0].pid, chance.randint(1, 200)
            assert pid is not None

            def kill(acknowledged: int, pid: int = pid, last: int = last) -> None:
                if acknowledged >= last:
                    kill_process(pid)

            ledger.run(address, commits=10_000, at=kill)
            node.wait_for_pid(0, other_than=pid)
            address = node.shard_address(0)  # the same, unless somebody has taken its port meanwhile
            ledger.check(address)
            ledger.settle(address)
            ledger.check(address)
        assert node.terminate() == 0
    verify(tmp_path / "data")


def test_a_new_shard_waits_for_the_process_that_still_has_its_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 2) as node:
        assert node.terminate() == 0
    lock = OsFiles().lock(data / "shard-0" / "lock")  # as a shard whose node was killed, until it has closed its store
    with NodeProcess(data, wait=False) as successor:
        wait_until(lambda: successor.said("waiting for the folder"), "the new shard waits")
        said = successor.said("waiting for the folder")[0]
        assert (said["shard"], str(os.getpid()) in said["error"]) == (0, True)
        lock.release()
        successor.wait_until_serving()
        assert [row.error for row in successor.rows()] == [None, None]
        assert successor.terminate() == 0


def test_a_node_that_is_stopped_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3, wait=False) as node:
        wait_until(
            lambda: (tmp_path / "data" / "cluster" / "registry.json").exists() and node.shard_pids(), "it starts a shard"
        )
        pids = node.shard_pids()
        assert node.terminate() == 0
        wait_until_ended(pids)
        assert not node.said("the node serves") or len(node.said("stopped")) == 4
    with NodeProcess(tmp_path / "data") as node:
        assert len(node.rows()) == 3


def test_a_second_node_on_the_folder_is_refused_by_the_process_that_has_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 2) as node:
        said = refused("node", "--data", data, "--listen", "127.0.0.1:0")
        assert f"in use by process {node.pid}" in said
        assert [row.error for row in node.rows()] == [None, None]


def test_a_node_is_small_and_does_not_load_what_its_shards_need(tmp_path: Path) -> None:
    large = {"numpy", "lmdb", "rich", "pydantic", "typer", "httpx"}
    program = f"import eventstore_cluster.node, sys; print({large} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "set()\n"
    with NodeProcess(tmp_path / "data", 2, before=["env"], console=False) as node:  # its libraries take 10 MB
        node.health()
        node.metrics()
        assert node.memory_peak_bytes() < 42 * 1024 * 1024


def test_a_shard_does_not_load_what_an_idle_one_does_not_need() -> None:
    large = {"rich", "pygments", "asyncio", "eventstore.client.aio", "pydantic", "typer", "httpx"}
    program = f"import eventstore_cluster.shard_process, sys; print({large} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_the_folder_of_serve_is_taken_over_and_given_back_with_every_event(tmp_path: Path) -> None:
    data = tmp_path / "data"
    versions = []
    for kind in (ServerProcess, NodeProcess, ServerProcess, NodeProcess):
        with kind(data) as process:
            address = process.shard_address(0) if isinstance(process, NodeProcess) else process.address
            with blocking.connect(address) as store:
                versions.append(store.append("a", [EVENT], ANY).version)
                assert [event.version for event in store.read("a")] == versions
            assert process.terminate() == 0
    assert versions == [1, 2, 3, 4]


@pytest.mark.parametrize("first", [ServerProcess, pytest.param(NodeProcess, marks=pytest.mark.long)])
def test_a_position_is_valid_under_serve_and_a_node_that_share_a_folder_in_turn(
    tmp_path: Path, first: type[ServerProcess | NodeProcess]
) -> None:
    data = tmp_path / "data"
    positions: list[Position | int] = [0]
    for kind in (first, NodeProcess, ServerProcess, NodeProcess):
        with kind(data) as process, blocking.connect(process.address) as store:
            store.append("a", [EVENT], ANY)
            for number, after in enumerate(positions):
                read = store.read_all(after=after)
                assert [event.version for event in read] == [*range(number + 1, len(positions) + 1)]
            assert process.terminate() == 0
        positions.append(Position.parse(str(read.position)))
    with adopted_folder(data) as adopted:
        assert {adopted.cluster.hex} == {each.cluster for each in positions if isinstance(each, Position)}


def test_serve_and_a_node_do_not_share_a_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        assert f"in use by process {server.pid}" in refused("node", "--data", data, "--listen", "127.0.0.1:0")
        assert not (data / "cluster").exists()
        server.terminate()
    with NodeProcess(data) as node:
        pid = node.rows()[0].pid
        assert f"in use by process {pid}" in refused("serve", "--data", data, "--listen", "127.0.0.1:0")
        assert node.terminate() == 0


def test_a_stop_under_load_answers_what_was_acknowledged_and_loses_none_of_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    acknowledged: list[str] = []
    with NodeProcess(data, 2) as node:
        address = node.shard_address(0)

        def load() -> None:
            with blocking.connect(address, reconnect_timeout=0) as store, contextlib.suppress(EventStoreError):
                for each in ids_of(0, 100_000):
                    store.append(each, [EVENT], 0)
                    acknowledged.append(each)

        loading = threading.Thread(target=load)
        loading.start()
        wait_until(lambda: len(acknowledged) > 50, "events are stored")
        assert node.terminate() == 0
        loading.join()
        assert len(acknowledged) < 100_000
    with NodeProcess(data) as node, blocking.connect(node.shard_address(0)) as store:
        stored = {event.aggregate_id for event in store.read_all()}
        assert stored.issuperset(acknowledged)
        assert len(stored) <= len(acknowledged) + 1


def test_a_setting_that_is_wrong_for_all_ends_the_start_with_the_error_of_a_shard(tmp_path: Path) -> None:
    said = refused("node", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--domain", "nowhere:app", code=2)
    assert "nowhere" in said
    with NodeProcess(tmp_path / "data", 3) as node:  # nothing has been stored: the number of shards may still be another one
        assert len(node.rows()) == 3


def test_a_shard_that_cannot_be_opened_leaves_the_others_serving_and_health_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 2) as node:
        append_to(node, 1, ids_of(1)[0])
        assert node.terminate() == 0
    events = data / "shard-1" / "events"
    events.rename(tmp_path / "away")
    with NodeProcess(data) as node:
        assert [row.error is None for row in node.rows()] == [True, False]
        wait_until(lambda: node.health()["healthy"], "the other shard answers")
        health = node.health()
        assert health["degraded"]
        assert health["attention"].startswith("shard 1: no process of it runs here: ")
        assert str(data / "shard-1") in health["attention"]
        assert 'eventstore_shard_serving{shard="1"} 0' in node.metrics()
        assert health["attention"] in refused_status(node)
        assert health["attention"] in run("cluster", "top", "--once", "--interval", 0.1, store=node.address).stderr
        with blocking.connect(node.address, reconnect_timeout=0) as store:
            print_dashboard(take_snapshot(store, None), node.address, with_queues=False)
        shown = capsys.readouterr().out
        assert health["attention"][:100] in shown
        assert "reactions and messages are not known: shard 1: " in shown
        listed = run("clients", "--json", store=node.address)
        assert (listed.returncode, [each["shard"] for each in json.loads(listed.stdout)]) == (1, [0])
        assert listed.stderr.startswith("shard 1 is left out: ")
        with blocking.connect(node.shard_address(0)) as store:
            store.note_projection("totals", 0, None, 0)
            listed = run("projections", "--json", store=node.address)
        assert (listed.returncode, [each["shard"] for each in json.loads(listed.stdout)]) == (1, [0])
        assert listed.stderr.startswith("shard 1 is left out: ")
        (tmp_path / "away").rename(events)
        wait_until(lambda: node.health()["degraded"] is False, "the shard is tried again")
        wait_until(lambda: [row.events for row in node.rows()] == [0, 1], "the map says where it is")
        assert node.terminate() == 0


def test_a_shard_whose_folder_is_gone_is_not_started_with_an_empty_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 2) as node:
        append_to(node, 1, ids_of(1)[0])
        wait_until(lambda: node.health()["degraded"] is False, "both shards serve")
        pid = node.rows()[1].pid
        assert pid is not None
        (data / "shard-1").rename(tmp_path / "away")
        kill_process(pid)
        wait_until(lambda: "is missing, or has no store.json" in str(node.health()["attention"]), "its folder is missed")
        assert not (data / "shard-1").exists()
        (tmp_path / "away").rename(data / "shard-1")
        wait_until(lambda: node.health()["degraded"] is False, "the shard is tried again")
        wait_until(lambda: [row.events for row in node.rows()] == [0, 1], "the map says where it is")
        assert node.terminate() == 0


def refused_status(node: NodeProcess) -> str:
    """Returns the error of `cluster status`, which shows the other shards all the same."""
    shown = run("cluster", "status", "--interval", 0, store=node.address)
    assert shown.returncode == 1
    assert "0–2047" in shown.stdout
    return shown.stderr


@pytest.mark.long
def test_a_shard_that_hangs_is_named_by_health_and_holds_up_no_other(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        address, pid = node.shard_address(1), node.rows()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: node.health()["attention"] == "shard 0: its process here does not answer", "it is named")
        wait_until(lambda: node.health()["healthy"], "the other shard answers")
        wait_until(lambda: 'eventstore_events_total{shard="1"}' in node.metrics(), "the other shard answers")
        with blocking.connect(address) as store:
            store.append(ids_of(1)[0], [EVENT], 0)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: node.health()["attention"] is None, "it answers again")
        assert node.terminate() == 0


def test_a_node_notices_by_itself_that_a_shard_hangs_and_that_it_answers_again(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, blocking.connect(node.address) as store:
        pid = node.rows()[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: node.said("a shard does not answer"), "the node notices, though nobody asks")
            assert [(line["shard"], line["pid"]) for line in node.said("a shard does not answer")] == [(1, pid)]
            stats = store.stats()
            assert (stats["shards_serving"], stats["attention"]) == (1, "shard 1: its process here does not answer")
            lines = node.metrics().splitlines()
            assert {'eventstore_shard_serving{shard="1"} 0', 'eventstore_shard_unserved{shard="1"} 1'} <= set(lines)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: node.said("a shard answers again"), "the node notices that, too")
        assert (store.stats()["shards_serving"], store.stats()["attention"]) == (2, None)
        assert node.terminate() == 0


@needs_strace
def test_a_shard_whose_disk_fails_is_poisoned_alone_and_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    failing = injecting("fdatasync:error=EIO:when=3", path=str(data / "shard-0" / "events" / "0000000001.events"))
    with NodeProcess(data, 2, before=failing) as node:
        first, second, pid = node.shard_address(0), node.shard_address(1), node.rows()[0].pid
        assert pid is not None
        stored: list[str] = []
        with blocking.connect(first, reconnect_timeout=0) as store, contextlib.suppress(Poisoned, ConnectionLost):
            for each in ids_of(0, 100):
                store.append(each, [EVENT], 0)
                stored.append(each)
        assert len(stored) < 100
        with blocking.connect(second) as store:
            store.append(ids_of(1)[0], [EVENT], 0)
        node.wait_for_pid(0, other_than=pid)
        said = node.said("a shard has ended and is started again")
        assert {line["shard"] for line in said} == {0}
        assert "sync" in said[0]["error"]
        with blocking.connect(node.shard_address(0)) as store:
            assert {event.aggregate_id for event in store.read_all()}.issuperset(stored)


@needs_strace
def test_a_shard_whose_disk_is_full_refuses_its_appends_alone_and_health_says_so(tmp_path: Path) -> None:
    data, (own, other) = tmp_path / "data", (ids_of(1, 60), ids_of(0, 60))
    full = injecting("pwritev2:error=ENOSPC:when=4..9", path=str(data / "shard-1" / "events" / "0000000001.events"))
    with NodeProcess(data, 2, before=full) as node, blocking.connect(node.address) as store:
        stored: list[str] = []
        refused: list[EventStoreError] = []
        said: set[str] = set()
        for each, beside in zip(own, other, strict=True):
            (outcome, of_other) = store.append_many([Commit(each, [EVENT], 0), Commit(beside, [EVENT], 0)])
            assert isinstance(of_other, Committed)
            stored.append(beside)
            if isinstance(outcome, EventStoreError):
                refused.append(outcome)
                said.add(node.health()["attention"])
            else:
                stored.append(each)
        assert refused
        assert {type(each) for each in refused} == {StorageFull}
        assert said == {f"shard 1: appends are refused: {refused[0].message}"}
        wait_until(lambda: node.health()["attention"] is None, "the disk takes what is written again")
        assert f'eventstore_refused_batches_total{{shard="1"}} {len(refused)}.0' in node.metrics().splitlines()
        assert sorted(event.aggregate_id for event in store.read_all()) == sorted(stored)


def test_a_node_that_listens_everywhere_is_found_where_it_was_asked(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2, listen="0.0.0.0:0", insecure="true") as node:
        found = cluster_status(f"tcp://127.0.0.1:{node.port}", 0).shards
        assert [row.error for row in found] == [None, None]
        assert all(row.leader is not None and row.leader.startswith("127.0.0.1:") for row in found)


def test_a_shard_is_found_again_although_the_registry_cannot_be_written_and_health_says_that(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, blocking.connect(node.address) as store:
        obstacle = tmp_path / "data" / "cluster" / "registry.json.tmp"  # where the document is written first
        obstacle.mkdir()
        pid, version = node.rows()[1].pid, store.cluster_map().version
        kill_process(pid)
        wait_until(lambda: "registry.json cannot be written" in str(node.health()["attention"]), "health says so")
        node.wait_for_pid(1, other_than=pid or 0)
        assert store.cluster_map().version > version
        assert store.append(ids_of(1)[0], [EVENT], 0).version == 1
        obstacle.rmdir()
        kill_process(node.rows()[1].pid)
        wait_until(lambda: node.health()["attention"] is None, "it is written again, and the shard serves")
        assert node.terminate() == 0


def test_a_map_is_waited_for_at_the_address_of_a_node_until_a_shard_changes(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        with blocking.connect(node.address) as store:
            before = store.cluster_map()
        pid = node.rows()[0].pid
        kill_process(pid)
        node.wait_for_pid(0, other_than=pid)
        for address in (node.address, node.shard_address(0), node.shard_address(1)):
            with blocking.connect(address) as store:
                wait_until(lambda store=store: store.cluster_map().version > before.version, "the map is newer")
                assert store.cluster_map().shards[0].uuid == before.shards[0].uuid


def test_shards_listen_above_their_node_or_on_free_ports() -> None:
    assert shard_addresses("127.0.0.1:7701", 2) == ["127.0.0.1:7711", "127.0.0.1:7712"]
    assert shard_addresses("127.0.0.1:0", 2) == ["127.0.0.1:0", "127.0.0.1:0"]
    assert shard_addresses("0.0.0.0:65524", 2) == ["0.0.0.0:65534", "0.0.0.0:65535"]
    with pytest.raises(InvalidArgument, match="65536"):
        shard_addresses("0.0.0.0:65525", 2)


def test_the_port_for_metrics_that_is_that_of_a_shard_is_refused(tmp_path: Path) -> None:
    port = free_port(10, 11)
    listens = ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{port + 11}"]
    result = run("node", "--data", tmp_path / "data", "--shards", 2, *listens)
    assert result.returncode == 2
    assert f"--http 127.0.0.1:{port + 11} is where shard 1 listens" in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("existing", [False, True])
def test_a_node_whose_shards_have_taken_ports_is_refused_with_the_next_choice_and_leaves_nothing(
    tmp_path: Path, existing: bool
) -> None:
    data, listen = tmp_path / "data", free_address(2)
    if existing:
        with NodeProcess(data, 2, listen=listen) as node:
            assert node.terminate() == 0
    port = int(listen.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port + PORTS_BELOW + 1)) as other:
        shards = [] if existing else ["--shards", 2]
        said = refused("node", "--data", data, "--listen", listen, *shards)
        assert said.startswith(f"127.0.0.1:{other.getsockname()[1]}: another process listens there, where shard 1 is to: ")
        assert data.exists() == existing
        with NodeProcess(data, 2, listen=said.rpartition(" ")[2]) as node:
            assert node.terminate() == 0


def test_a_node_starts_while_the_shard_of_a_killed_one_has_its_port(tmp_path: Path) -> None:
    data, listen = tmp_path / "data", free_address(2)
    with NodeProcess(data, 2, listen=listen) as node:
        append_to(node, 0, ids_of(0)[0])
        assert node.terminate() == 0
    lock = OsFiles().lock(data / "shard-0" / "lock")  # as a shard that has not noticed yet
    with socket.create_server(("127.0.0.1", int(listen.rpartition(":")[2]) + PORTS_BELOW)) as held:
        with NodeProcess(data, listen=listen, wait=False) as successor:
            wait_until(lambda: successor.said("waiting for the folder"), "a new shard waits")
            held.close()
            lock.release()
            successor.wait_until_serving()
            wait_until(lambda: [row.events for row in successor.rows()] == [1, 0], "both shards serve")
            assert successor.terminate() == 0


def test_a_server_that_is_no_cluster_is_shown_as_the_one_shard_that_it_is(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        found = cluster_status(server.address, 0)
        assert found.cluster is None
        assert [(row.shard, row.slots, row.pid, row.error) for row in found.shards] == [(0, "0-4095", server.pid, None)]
        assert f"tcp://{found.shards[0].leader}" == server.address
        server.terminate()
    assert "127.0.0.1" in refused("cluster", "status", store=server.address)
