"""A cluster is backed up while it serves, each shard up to a cut of its own, and restored into the folder of a node."""

from __future__ import annotations

import json
from pathlib import Path

import eventstore as es
from eventstore.blocking import BlockingStore, connect
from tests.cli.processes import output, refused
from tests.cluster.node_process import NodeProcess

EVENTS = 60


def fill(store: BlockingStore) -> None:
    for number in range(EVENTS):
        store.append(f"a-{number}", [es.NewEvent("Made", {"total": number})], 0, command_id=f"c-{number}")


def test_a_node_of_two_shards_is_backed_up_and_restored(tmp_path: Path) -> None:
    place, data = tmp_path / "place", tmp_path / "data"
    with NodeProcess(data, 2) as node, connect(node.address) as store:
        fill(store)
        made = json.loads(output("backup", place, "--json", store=node.address))
        position = store.read_all()
        before = sorted((event.aggregate_id, event.version, event.data) for event in position)
        assert sorted(made["ends"]) == ["0", "1"]
        assert "--until is a sequence" in refused("restore", place, tmp_path / "x", "--until", "3", code=2)
    output("restore", place, tmp_path / "new")
    with NodeProcess(tmp_path / "new", None) as node, connect(node.address) as store:
        after = sorted(
            (event.aggregate_id, event.version, event.data) for event in store.read_all() if event.aggregate_id[0] != "$"
        )
        assert after == before
        assert store.append("a-1", [es.NewEvent("More", {})], 1).version == 2
    output("restore", place, tmp_path / "one", "--shard", "1")
    assert "no faults" in output("verify", tmp_path / "one")
    with_data = output("backup", tmp_path / "stopped", "--data", data)  # the node is stopped by now
    assert "@0" in with_data
    assert "@1" in with_data
