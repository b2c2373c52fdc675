"""Commits of several aggregates on three replicas: after the format of the cluster was raised, and through a new leader."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore.store.data_folder import read_event_folder
from eventstore_cluster.registry.node_keys import NODES
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import change, keys
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def writes(number: int, version: int) -> list[es.Write]:
    return [es.Write(f"{name}-{{{number}}}", [es.NewEvent("Counted", {"number": number})], version) for name in "abc"]


@pytest.mark.long
def test_an_older_cluster_gets_them_by_one_command_and_a_new_leader_has_them(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    def older(found: dict[str, object] | None) -> dict[str, object]:
        return {**(found or {}), "format": 1}

    with ThreeNodes(tmp_path, etcd, cluster) as three:
        change(etcd, cluster, lambda seen: {"cluster": older(seen.value("cluster"))})  # as an older program created it
        for name in NAMES:  # so that each process reads it before it leads
            three.stop(name)
        for name in NAMES:
            for path in (tmp_path / name).rglob("store.json"):
                path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
            three.start(name)
        three.wait_until_in_sync()
        with three.client() as store:
            store.append("alone", [es.NewEvent("Counted", {})], 0)
            with pytest.raises(es.UnsupportedVersion, match="upgrade"):
                store.commit(writes(0, 0), command_id="c-0")
            assert "`eventstore cluster upgrade` raises it to 2" in run_cluster(etcd, cluster, "status").stderr
            old = keys(etcd, cluster).value(f"{NODES}n2")
            assert old is not None
            change(etcd, cluster, lambda _: {f"{NODES}n9": {**old, "format": 1, "version": "0.0.9", "ports": False}})
            refused = run_cluster(etcd, cluster, "upgrade", code=1).stderr
            assert "n9 runs 0.0.9, which knows format 1" in refused
            change(etcd, cluster, lambda _: {f"{NODES}n9": None})
            assert "has format 2 now; it had 1" in run_cluster(etcd, cluster, "upgrade").stdout
            assert "has format 2 already" in run_cluster(etcd, cluster, "upgrade").stdout

            def done() -> bool:
                try:
                    return len(store.commit(writes(0, 0), command_id="c-0")) == 3
                except es.UnsupportedVersion:
                    return False

            wait_until(done, "the leader has read the new format")
            first = store.commit(writes(0, 0), command_id="c-0")
            assert [(each.version, each.sequence, each.duplicate) for each in first] == [
                (1, 2, True),
                (1, 3, True),
                (1, 4, True),
            ]
            three.kill(three.leader())
            again = store.commit(writes(0, 0), command_id="c-0")
            assert [each._replace(durability=None) for each in again] == [each._replace(durability=None) for each in first]
            assert store.commit(writes(0, 1), command_id="c-1")[0].version == 2
            found = [(each.aggregate_id, each.commit_continues) for each in store.read_all()]
            assert found[1:4] == [("a-{0}", True), ("b-{0}", True), ("c-{0}", False)]
        survivors = list(three.nodes)
    for name in survivors:
        (folder,) = (tmp_path / name).glob("shard-0")
        assert [header.format for header in read_event_folder(OsFiles(), folder).headers()][:2] == [1, 2]
