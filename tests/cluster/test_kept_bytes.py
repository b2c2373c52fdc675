"""Both sides of a split say how much they keep of what the other one hands out."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore import Commit, NewEvent, blocking
from eventstore.cli.terminal.cluster_table import print_cluster
from eventstore_cluster.status import ClusterStatus, cluster_status
from tests.cli.processes import output
from tests.cluster.led_shards import LedShards
from tests.waiting import wait_until


def test_after_a_split_the_status_shows_how_much_of_each_shard_is_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LedShards(tmp_path, 2, file_size_bytes=16_384) as cluster:
        with blocking.connect(cluster.address) as store:
            for part in range(4):
                store.append_many(Commit(f"a-{part}-{each}", [NewEvent("Happened", bytes(200))], 0) for each in range(250))
        assert [row.foreign_bytes for row in cluster_status(cluster.address, 0).shards] == [0, 0]
        assert "After a split" not in output("top", "--once", "--interval", 0.1, store=cluster.address)
        cluster.split(0)
        found: list[ClusterStatus] = []

        def measured() -> bool:
            found[:] = [cluster_status(cluster.address, 0)]
            parent, _, child = found[0].shards
            kept = [(each.foreign_bytes or 0) / (each.shared_bytes or 1) for each in (parent, child)]
            return parent.shared_bytes == child.shared_bytes != 0 and all(0.4 < part < 0.6 for part in kept)

        wait_until(measured, "both have measured, and each keeps about half for the other")
        assert (found[0].shards[1].shared_bytes, found[0].shards[1].foreign_bytes) == (0, 0), "it was not split"
        print_cluster(found[0])
        said = capsys.readouterr().err
        assert "In files from before a split, other shards serve about: shard 0 " in said
        assert "shard 1" not in said.partition("about:")[2]
        note = "After a split, the events and files of a shard include the older events"
        assert note in said
        assert note in output("top", "--once", "--interval", 0.1, store=cluster.address), (
            "the events are counted twice there, too"
        )
