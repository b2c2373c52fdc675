"""A node with real processes: it serves its shards, survives their death, and leaves nothing behind when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventstore import ANY, NewEvent, RawCommand, blocking
from eventstore.errors import Elsewhere
from eventstore.records.slots import slot_of
from tests.cli.processes import output, refused
from tests.cluster.node_process import NodeProcess, wait_until_ended
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
EVENT = NewEvent("Happened", b"1")


def ids_of(shard: int, count: int = 1) -> list[str]:
    """Returns ids whose slots belong to this one of two shards."""
    found = [f"a-{number}" for number in range(40 * count)]
    return [each for each in found if (slot_of(each) >= 2048) == bool(shard)][:count]


def append_to(node: NodeProcess, shard: int, aggregate_id: str) -> None:
    with blocking.connect(node.shard_address(shard)) as store:
        store.append(aggregate_id, [EVENT], ANY)


def test_a_node_serves_its_shards_and_tells_where_they_are(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        assert sorted(node.shard_pids()) == sorted(row.pid or 0 for row in node.rows())
        append_to(node, 0, ids_of(0)[0])
        found = json.loads(output("cluster", "status", "--json", "--interval", 0, store=node.address))
        shown = [(row["shard"], row["slots"], row["epoch"], row["events"]) for row in found["shards"]]
        assert shown == [(0, "0-2047", 1, 1), (1, "2048-4095", 1, 0)]
        of_a_shard = json.loads(output("cluster", "status", "--json", "--interval", 0, store=node.shard_address(1)))
        assert [row["leader"] for row in of_a_shard["shards"]] == [row["leader"] for row in found["shards"]]
        assert "0–2047" in output("cluster", "status", store=node.address)
        assert node.terminate() == 0
        assert len(node.said("stopped")) == 3


def test_the_address_of_a_node_stores_nothing_and_a_shard_only_what_it_owns(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        own = ids_of(1)[0]
        with blocking.connect(node.address) as store:
            asked: list[Any] = [
                lambda: store.append(own, [EVENT], ANY), lambda: list(store.read(own)), lambda: list(store.read_all()),
                lambda: store.version(own), lambda: store.send(RawCommand("X", own, b"{}")), store.broker.topics,
            ]  # fmt: skip
            for ask in asked:
                with pytest.raises(Elsewhere) as refused_there:
                    ask()
                assert refused_there.value.fields["slot"] is None
            assert store.stats()["shards_serving"] == 2
        with pytest.raises(Elsewhere):
            append_to(node, 0, own)
        append_to(node, 1, own)
        assert [row.events for row in node.rows()] == [0, 1]


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
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: node.said("a shard has ended and is started again"), "the node notices")
        node.wait_for_pid(0, other_than=pid)
        assert [row.events for row in node.rows()] == [1, 1]
        said = node.said("a shard has ended and is started again")
        assert [line["shard"] for line in said] == [0]
        assert "SIGKILL" in said[0]["error"]
        assert node.terminate() == 0


def test_a_second_node_on_the_folder_is_refused_by_the_process_that_has_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 2) as node:
        said = refused("node", "--data", data, "--listen", "127.0.0.1:0")
        assert f"in use by process {node.pid}" in said
        assert [row.error for row in node.rows()] == [None, None]


def test_a_node_is_small_and_does_not_load_what_its_shards_need(tmp_path: Path) -> None:
    large = {"numpy", "lmdb", "structlog", "pydantic", "typer"}
    program = f"import eventstore_cluster.node, sys; print({large} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "set()\n"
    with NodeProcess(tmp_path / "data", 2) as node:
        node.health()
        node.metrics()
        assert node.memory_peak_bytes() < 40 * 1024 * 1024
