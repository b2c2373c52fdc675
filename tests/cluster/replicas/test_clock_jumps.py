"""The wall clock of all machines but etcd's is set by an hour while leases run: leases are counted by CLOCK_BOOTTIME."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore, connect
from eventstore.errors import EventStoreError
from eventstore_cluster.registry.etcd.lease import now
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import LEASE_S, ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
JUMPING: Path = Path(__file__).parent / "jumping_clock"
HOUR_S = 3_600


class WallClock:
    """That of the nodes, by a file which they read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    def jump(self, ahead_s: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(ahead_s))
        new.replace(self._file)


def append(store: BlockingStore, number: int) -> None:
    store.append("a-1", [es.NewEvent("Counted", {"number": number})], number)


@pytest.mark.long
def test_a_jump_of_the_wall_clock_neither_ends_a_lease_nor_extends_one(
    tmp_path: Path, etcd: Etcd, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(JUMPING))
    monkeypatch.setenv("JUMPING_CLOCK", str(tmp_path / "ahead"))
    clock = WallClock(tmp_path / "ahead")
    with ThreeNodes(tmp_path, etcd, cluster, before=["env"]) as three, three.client() as store:
        leader, epoch, number = three.leader(), three.state().epoch, 0
        for ahead_s in (HOUR_S, 0, -HOUR_S):
            clock.jump(ahead_s)
            until = now() + 2 * LEASE_S
            while now() < until:  # renewed several times
                append(store, number)
                number += 1
            assert (three.leader(), three.state().epoch) == (leader, epoch)
        newest = next(iter(store.read("a-1", backwards=True, limit=1)))
        assert newest.timestamp / 1e6 < time.time() - HOUR_S / 2  # it did jump
        clock.jump(0)
        direct = three.nodes[leader].shard_address(0)
        with connect(direct, reconnect_timeout=0) as alone, three.client(three.followers()) as others:
            assert alone.version("a-1") == number
            with three.paused(leader):
                append(others, number)
                clock.jump(-HOUR_S)  # by this clock its lease lasts an hour more
            try:
                read = alone.version("a-1")
            except EventStoreError:
                read = None
            assert read in (None, number + 1)
        wait_until(lambda: three.nodes[leader].said("this run of the replica ends"), "it has noticed")
        three.wait_until_in_sync()
        assert three.leader() != leader
