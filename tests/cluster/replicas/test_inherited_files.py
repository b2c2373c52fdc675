"""A replica that has of its shard only the files from before a split leads: it adds nothing to them, which others have too."""

from __future__ import annotations

import pytest

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.records.slots import slot_of
from eventstore.store.data_folder import read_event_folder
from eventstore.store.verification import verify
from eventstore_cluster.nodes.moving.plans import limit_moves
from eventstore_cluster.nodes.splitting.splitting import split, wait_until_split
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replicated_keys import ShardKey, read_shard
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.test_split import EVENT
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
CLUSTER = "inherited"
WAIT_S = 60.0
LARGE = [es.NewEvent("Large", bytes(range(1, 256)) * 200)]
OWN = [name for name in (f"a-{number}" for number in range(100)) if slot_of(name) >= 2048][:18]
"""Aggregates of the new shard: two pieces at the limited rate, so that it takes half a second until more than these comes."""


def folder_of(three: ThreeNodes, name: str) -> ChunkFolder:
    return read_event_folder(OsFiles(), three.folder / name / "shard-1")


def records(folder: ChunkFolder, number: int, end: int) -> bytes:
    path = folder.chunk_path(number)
    return path.read_bytes()[4096:end] if path.exists() else b""


def shard_one(etcd: Etcd) -> ShardKey:
    return read_shard(1, keys(etcd, CLUSTER).value("shard/1") or {})


@pytest.mark.long
def test_a_replica_that_has_nothing_else_and_has_to_lead_begins_a_file_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, etcd: Etcd
) -> None:
    options = EtcdOptions((etcd.url,))
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, CLUSTER, replicas=2) as three:
        with three.client() as store:
            for name in OWN:
                store.append(name, LARGE, 0)
            wait_until_split(options, CLUSTER, split(options, CLUSTER, 0, 2), WAIT_S)
            store.append(OWN[0], EVENT, 1)
        three.shards = 2
        key = shard_one(etcd)
        birth, (through, *_) = key.lineage.birth, [each.through for each in key.lineage.splits]
        last = key.lineage.ancestors[-1].through
        assert birth is not None
        (late,) = set(NAMES) - set(key.state.replicas)
        linked = records(folder_of(three, three.leader(1)), last, birth.end)

        limit_moves(options, CLUSTER, None, 1_000_000, unlimited=False)
        run_cluster(etcd, CLUSTER, "replicas", "3", "--shard", "1", "--yes")
        store_json = three.folder / late / "shard-1" / "store.json"
        wait_until(lambda: store_json.exists() and records(folder_of(three, late), last, birth.end) == linked, "it is fetched")
        three.kill(late)
        fetched = folder_of(three, late)
        assert not fetched.chunk_path(last + 1).exists(), "the copies are paced: this one has what was shared, and not more"
        assert not fetched.headers()[-1].completed

        for name in list(three.nodes):
            three.kill(name)
        three.start(late)
        wait_until(lambda: late in three.running(1), "its process runs")
        run_cluster(etcd, CLUSTER, "lead", "1", late, "--accept-loss", "--confirm", late)
        assert three.leader(1) == late
        for name in key.state.replicas:
            three.start(name)
        three.wait_until_in_sync()
        with three.client() as store:  # the second event of OWN[0] is what was lost
            for name in OWN:
                assert store.append(name, EVENT, 1).version == 2
        for name in NAMES:
            three.stop(name)
        for name in NAMES:
            assert verify(three.folder / name / "shard-1").findings == []
            shared, own, *_ = folder_of(three, name).headers()[last - 1 :]
            assert (shared.end, shared.checksum, shared.last_sequence) == (birth.end, birth.checksum, through)
            assert own.first_sequence == through + 1
            three.start(name)
        three.wait_until_in_sync()
        with three.client() as store:
            for name in OWN:
                assert store.append(name, EVENT, 2).version == 3
                assert [event.version for event in store.read(name)] == [1, 2, 3]
