"""`.load("./data")` of a node's folder: all of its shards, each where it belongs, or nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from eventstore.errors import FolderRefused
from eventstore.model import Event
from eventstore.records.slots import slot_of
from eventstore_cluster.node_folder import open_node_folder
from eventstore_cluster.shard_folders import PlannedShard
from pyspark_eventstore.source.data_folders import find_data_folders
from tests.cluster.test_shard_folders import make_node
from tests.spark.loading import load, reader_of
from tests.spark.made import MadeStore, commits
from tests.spark.source.test_stream import Sink, follow, of


def node_of_three(data: Path, count: int = 60) -> tuple[tuple[PlannedShard, ...], list[Event]]:
    """Makes the folder of a node with events in every shard; returns its shards and all events."""
    shards, events = make_node(data, 3).shards, list[Event]()
    for shard in shards:
        store = MadeStore(shard.folder, shard=shard.identity)
        store.append_all(each for each in commits(count, aggregates=20) if owns(shard, str(each[0])))
        events += store.events()
        store.close()
    return shards, events


def owns(shard: PlannedShard, aggregate_id: str) -> bool:
    return any(first <= slot_of(aggregate_id) <= last for first, last in shard.identity.slots)


def ids_read(path: Path, aggregate_id: str) -> tuple[set[str], set[str]]:
    """Returns the aggregates and the folders of what is read with this option."""
    reader = reader_of(path, aggregate_id=aggregate_id)
    partitions = reader.partitions()
    rows = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    planned = {part.data_folder.path for each in partitions for part in getattr(each, "slices", ())}
    return {row["aggregate_id"] for row in rows}, planned


@pytest.mark.heavy
def test_all_shards_of_a_node_are_read_and_each_row_names_its_shard(spark: SparkSession, tmp_path: Path) -> None:
    shards, events = node_of_three(tmp_path / "data")
    rows = load(spark, tmp_path / "data").collect()
    told = sorted((row.aggregate_id, row.version, row.sequence) for row in rows)
    assert told == sorted((event.aggregate_id, event.version, event.sequence) for event in events)
    assert {row.shard for row in rows} == {str(shard.folder) for shard in shards}
    one = shards[1]
    frame = load(spark, tmp_path / "data").where(f"shard = '{one.folder}'")
    assert {row.aggregate_id for row in frame.collect()} == {e.aggregate_id for e in events if owns(one, e.aggregate_id)}


def test_an_aggregate_reads_only_the_shards_of_its_slots(tmp_path: Path) -> None:
    shards, events = node_of_three(tmp_path / "data")
    chosen = {shard.folder: next(e.aggregate_id for e in events if owns(shard, e.aggregate_id)) for shard in shards}
    for folder, wanted in chosen.items():
        assert ids_read(tmp_path / "data", wanted) == ({wanted}, {str(folder)})
    (first, a), (second, b) = list(chosen.items())[:2]
    assert ids_read(tmp_path / "data", json.dumps([a, b])) == ({a, b}, {str(first), str(second)})


def test_a_node_and_a_shard_of_it_by_name_are_read_once(tmp_path: Path) -> None:
    shards, _ = node_of_three(tmp_path / "data")
    found = find_data_folders([str(tmp_path / "data"), str(shards[2].folder), f"{tmp_path}/da*"])
    assert [each.path for each in found] == [str(shard.folder) for shard in shards]
    assert [each.shard for each in found] == [shard.identity for shard in shards]


def test_a_node_that_runs_or_lost_its_registry_is_read_as_well(tmp_path: Path) -> None:
    shards, _ = node_of_three(tmp_path / "data")
    with open_node_folder(tmp_path / "data", None).registry:
        assert len(find_data_folders([str(tmp_path / "data")])) == 3
    shutil.rmtree(tmp_path / "data" / "cluster")
    found = find_data_folders([str(tmp_path / "data")])
    assert [each.shard for each in found] == [shard.identity for shard in shards]
    assert not (tmp_path / "data" / "cluster").exists()


def test_a_cluster_of_one_is_the_store_of_the_folder_itself(tmp_path: Path) -> None:
    make_node(tmp_path / "data", 1)
    assert [each.path for each in find_data_folders([str(tmp_path / "data")])] == [str(tmp_path / "data")]


def lose(data: Path, other: Path) -> str:
    shutil.rmtree(data / "shard-1")
    return "shard-1: is missing"


def swap(data: Path, other: Path) -> str:
    os.rename(data / "shard-0", data / "aside")
    os.rename(data / "shard-1", data / "shard-0")
    os.rename(data / "aside", data / "shard-1")
    return "shard-0: holds store"


def take_a_foreign_one(data: Path, other: Path) -> str:
    make_node(other, 3)
    shutil.rmtree(data / "shard-2")
    shutil.copytree(other / "shard-2", data / "shard-2")
    return "shard-2: holds store"


@pytest.mark.parametrize("harm", [lose, swap, take_a_foreign_one])
def test_a_shard_that_is_not_what_it_should_be_is_refused_by_name(tmp_path: Path, harm: Callable[[Path, Path], str]) -> None:
    node_of_three(tmp_path / "data", 10)
    expected = harm(tmp_path / "data", tmp_path / "other")
    with pytest.raises(FolderRefused) as raised:
        reader_of(tmp_path / "data").partitions()
    error = str(raised.value)
    assert expected in error
    assert error.count("of cluster") == (1 if harm is lose else 2)  # what it is, and what it should be


def append_to(shard: PlannedShard, count: int, first: int) -> list[tuple[object, ...]]:
    """Appends commits to the shard of a node that has stopped; returns all its events, as a stream's sink tells them."""
    store = MadeStore(shard.folder, shard=shard.identity)
    store.append_all(each for each in commits(count, aggregates=20, first=first) if owns(shard, str(each[0])))
    found = of(store)
    store.close()
    return found


@pytest.mark.heavy
@pytest.mark.long
def test_a_stream_of_a_node_continues_each_shard_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shards, _ = node_of_three(data)
    sink = Sink(tmp_path / "sink")
    sink.run(follow(spark, data, maxEventsPerTrigger=20))
    assert len(sink.batches()) > 1
    expected = [row for shard in shards[:2] for row in append_to(shard, 40, 1_000)] + append_to(shards[2], 0, 0)
    sink.run(follow(spark, data))
    assert sink.rows() == expected
    shutil.move(shards[1].folder, tmp_path / "aside")
    with pytest.raises(StreamingQueryException, match="shard-1: is missing"):
        sink.run(follow(spark, data))
    assert sink.rows() == expected


@pytest.mark.heavy
@pytest.mark.long
def test_a_checkpoint_of_a_single_store_goes_on_when_a_node_has_taken_over_its_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    store = MadeStore(data)
    store.append_all(commits(10))
    store.close()
    sink = Sink(tmp_path / "sink")
    sink.run(follow(spark, data))
    opened = open_node_folder(data, 1)
    [shard] = opened.layout.shards
    with opened.registry:
        expected = append_to(shard, 10, 500)
        sink.run(follow(spark, data))
    assert sink.rows() == expected
