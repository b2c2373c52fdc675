"""Of a shard with replicas a follower is read, up to what its leader says is committed."""

from __future__ import annotations

import json
from pathlib import Path

import eventstore as es
from eventstore.blocking import connect
from tests.cli.processes import output
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.server_process import ServerProcess


def test_a_follower_is_read_and_what_is_restored_is_a_store_of_its_own(etcd: Etcd, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with ThreeNodes(tmp_path, etcd, "backups") as nodes, nodes.client() as store:
        for number in range(40):
            store.append(f"a-{number % 7}", [es.NewEvent("Made", {"number": number})], es.ANY)
        folders = [word for name in NAMES for word in ("--data", tmp_path / name)]
        address = next(iter(nodes.nodes.values())).address
        first = json.loads(output("backup", place, *folders, "--json", store=address))
        for number in range(40):
            store.append(f"b-{number % 7}", [es.NewEvent("Made", {"number": number})], es.ANY)
        wanted = list(store.read_all())
        made = json.loads(output("backup", place, *folders, "--incremental", "--json", store=address))
    assert int(first["ends"]["0"].partition("-")[0]) >= 40
    assert int(made["ends"]["0"].partition("-")[0]) >= 80
    manifest = json.loads((place / "backup.json").read_text())
    assert manifest["cluster"]["replicas"] is True
    assert "kept.json" in manifest["cluster"]["registry"]
    output("restore", place, tmp_path / "new")
    assert not (tmp_path / "new" / "replica.json").exists()
    with ServerProcess(tmp_path / "new") as server, connect(server.address) as store:
        *found, begun = store.read_all()
        assert found == wanted
        assert begun.aggregate_id == "$timeline"
