"""A shard is split ten times in turn: readers, positions, and what is copied out of each shard are those of one log."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import eventstore as es
from eventstore.cli.transfer.extract_run import extract
from eventstore.store.verification import verify
from tests.cluster.led_shards import LedShards
from tests.cluster.test_following_splits import Written, taken

SPLITS = 10


@pytest.mark.long
def test_a_shard_that_is_split_ten_times_in_turn_is_read_from_any_position_and_copied_out_in_parts(tmp_path: Path) -> None:
    async def main(cluster: LedShards) -> None:
        written = Written(cluster)
        written.append(120)
        async with es.connect(cluster.address) as store, store.subscribe() as stream:
            seen = await taken(stream, 60)
            old = es.Position.parse(str(stream.position))
            newest = 0
            for number in range(SPLITS):  # now the shard itself, now the one that was split off last
                newest = await anyio.to_thread.run_sync(cluster.split, newest if number % 2 else 0)
                written.append(20, number)
            seen += await taken(stream, written.total - len(seen))
            written.check(seen)
            again = [event async for event in store.read_all(old)]
            assert sorted(map(_identity, seen[60:])) == sorted(map(_identity, again))
            shards = store.shards
            assert shards.keys() == set(range(SPLITS + 1))
            parts = [await extract(cluster.address, shard, tmp_path / f"part-{shard}", lambda *_: None) for shard in shards]
            for part in parts:
                position = es.Position.parse(part.position)
                assert [each async for each in shards[part.shard].read_all(position)] == []
        copied = []
        for part in parts:
            assert verify(tmp_path / f"part-{part.shard}").sound
            async with es.open_store(tmp_path / f"part-{part.shard}") as single:
                own = [event async for event in single.read_all()]
            assert part.events == len(own)
            copied += own
        assert len(copied) == written.total
        written.check(sorted(copied, key=_identity))

    with LedShards(tmp_path / "cluster", 1, file_size_bytes=16_384) as cluster:
        anyio.run(main, cluster, backend="trio")
    for shard in range(SPLITS + 1):
        assert verify(tmp_path / f"cluster/shard-{shard}").sound


def _identity(event: es.Event) -> tuple[str, int]:
    return event.aggregate_id, event.version
