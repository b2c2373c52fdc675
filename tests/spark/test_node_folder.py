"""The folder of a node: all its shards are read, checked against its registry, and rebuilt into one table."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trio
from pyspark.sql import SparkSession

import eventstore as es
from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.domain.projections.projector import project
from eventstore.domain.projections.targets.postgres import PostgresTarget
from eventstore.errors import FolderRefused, InvalidArgument
from pyspark_eventstore.jobs.rebuild import rebuild_once
from pyspark_eventstore.source.data_folders import find_data_folders
from tests.cluster.node_process import NodeProcess
from tests.domain import postgresql
from tests.spark.balances import ByType
from tests.spark.jobs.test_rebuild import place

pytestmark = pytest.mark.heavy
IDS = [f"a-{number}" for number in range(60)]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    with postgresql.running_server() as address:
        yield address


def append(address: str, *types: str) -> None:
    with blocking.connect(address) as store:
        for each in types:
            outcomes = store.append_many([Commit(name, [NewEvent(each, {"amount": 1})], ANY) for name in IDS])
            assert {es.Committed} == {outcome.__class__ for outcome in outcomes}


async def bring_up(address: str, database: str, *, begins: bool) -> int:
    async with es.connect(address) as store:
        return await project(store, ByType(), PostgresTarget(database), until_caught_up=True, begins=begins)


@pytest.mark.long
def test_the_folder_of_a_node_is_read_while_it_runs_and_a_live_projector_takes_over_from_a_rebuild(
    tmp_path: Path, spark: SparkSession, database: str
) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 3) as node, psycopg.connect(database, autocommit=True) as connection:
        append(node.address, "Opened", "Deposited", "Opened")
        frame = spark.read.format("eventstore").load(str(data))
        assert {row.shard for row in frame.select("shard").distinct().collect()} == {str(data / f"shard-{n}") for n in range(3)}
        counted = {(row.type, row["count"]) for row in frame.groupBy("type").count().collect()}
        assert counted == {("Opened", 120), ("Deposited", 60)}
        rebuild_once(spark, [str(data)], place("ByType"), database)
        assert connection.execute("SELECT key, events FROM by_type ORDER BY key").fetchall() == [
            ("Deposited", 60),
            ("Opened", 120),
        ]
        append(node.address, "Closed", "Opened")
        assert trio.run(lambda: bring_up(node.address, database, begins=False)) == 300
        expected = {"Deposited": 60, "Opened": 180, "Closed": 60}
        assert dict(connection.execute("SELECT key, events FROM by_type").fetchall()) == expected
        append(node.address, "Opened")
        rebuild_once(spark, [str(data)], place("ByType"), database, replace=True)
        assert trio.run(lambda: bring_up(node.address, database, begins=False)) == 360
        rows = connection.execute("SELECT projection, sequence FROM eventstore_checkpoints ORDER BY projection").fetchall()
        assert rows == [(f"by_type@{row.shard}", row.events) for row in node.rows()]
        rebuild_once(spark, [str(data / "shard-1")], place("ByType"), database, replace=True)
        rows = connection.execute("SELECT projection FROM eventstore_checkpoints").fetchall()
        assert rows == [("by_type",)], "the table is that of one store now"
        with blocking.connect(node.address) as store:
            assert Counter(event.type for event in store.read_all()) == {**expected, "Opened": 240}
        assert node.terminate() == 0


@pytest.mark.long
def test_a_shard_that_is_missing_or_swapped_is_refused_and_nothing_is_read(tmp_path: Path, database: str) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data, other):
        with NodeProcess(folder, 2) as node:
            append(node.address, "Opened")
            assert node.terminate() == 0
    assert [each.shard.shard for each in find_data_folders([str(data)]) if each.shard is not None] == [0, 1]
    with pytest.raises(InvalidArgument, match="4 stores cannot share one table"):
        rebuild_once_without_spark([str(data), str(other)], database)
    (data / "shard-0").rename(tmp_path / "kept")
    with pytest.raises(FolderRefused, match=r"shard-0: is missing.*expected was store"):
        find_data_folders([str(data)])
    shutil.copytree(other / "shard-0", data / "shard-0")
    with pytest.raises(FolderRefused, match=r"holds store .* of cluster .*, expected was store"):
        find_data_folders([str(data)])
    shutil.rmtree(data / "shard-0")
    shutil.copytree(data / "shard-1", data / "shard-0")
    with pytest.raises(FolderRefused, match="expected was store"):
        find_data_folders([str(data)])


def rebuild_once_without_spark(paths: list[str], database: str) -> None:
    from pyspark_eventstore.jobs.rebuild import check_rebuild

    check_rebuild(paths, place("ByType"), database, replace=True)
