"""A query over the folders of shards that were split reads each event once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.store.data_folder import STORE
from pyspark_eventstore.source.data_folders import find_data_folders
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.predicates import Numbers, Texts, Wanted
from pyspark_eventstore.source.slices import plan
from pyspark_eventstore.source.snapshot import take_snapshots
from tests.cluster.led_shards import LedShards

IDS = [f"a-{number}" for number in range(40)]
SCHEMA = pa.schema([("aggregate_id", pa.string()), ("version", pa.int64())])


def read(paths: list[str], wanted: Wanted, *, permissive: bool) -> Counter[tuple[str, int]]:
    slices = plan(take_snapshots(paths), {}, {}, wanted, 10_000, by_index=not permissive)
    batches = read_slices(slices, SCHEMA, wanted, permissive=permissive, report=None)
    return Counter(row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))


@pytest.mark.parametrize("permissive", [False, True])
def test_each_event_is_read_once_sorted_or_not_and_whatever_is_wanted(tmp_path: Path, permissive: bool) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        for parent in (0, 0, 1):
            with blocking.connect(cluster.address) as store:
                outcomes = store.append_many(Commit(each, [NewEvent("T", b"1")], ANY) for each in IDS * 10)
                assert len(outcomes) == len(IDS) * 10
            cluster.split(parent)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    paths = [str(tmp_path / "shard-*")]
    shards = [each.shard for each in find_data_folders(paths)]
    assert [each and each.shard for each in shards] == [0, 1, 2, 3]
    assert read(paths, Wanted(), permissive=permissive) == expected
    few = Wanted(ids=Texts(members=frozenset([b"a-1", b"a-2"])))
    assert read(paths, few, permissive=permissive) == Counter({key: 1 for key in expected if key[0] in ("a-1", "a-2")})
    late = Wanted(versions=Numbers(15))
    assert read(paths, late, permissive=permissive) == Counter({key: 1 for key in expected if key[1] >= 15})


def test_a_parent_whose_folder_does_not_say_yet_that_it_was_split_is_read_without_what_the_new_shards_got(
    tmp_path: Path,
) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        store_json = tmp_path / "shard-0" / STORE
        with blocking.connect(cluster.address) as store:
            store.append_many(Commit(each, [NewEvent("T", b"1")], ANY) for each in IDS * 3)
            before = store_json.read_text()
            (alone,) = find_data_folders([str(tmp_path / "shard-0")])
            assert alone.shard is None
            for parent in (0, 1):
                cluster.split(parent)
            after = [each.shard for each in find_data_folders([str(tmp_path / "shard-*")])]
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    store_json.write_text(before)
    assert [each.shard for each in find_data_folders([str(tmp_path / "shard-*")])] == after
    assert [each.shard for each in find_data_folders([str(tmp_path)])] == after, "those of the folder of a node"
    assert read([str(tmp_path / f"shard-{number}") for number in range(3)], Wanted(), permissive=False) == expected
