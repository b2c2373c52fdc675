"""`spark.read.format("eventstore")`: the same events as the store itself reads, whatever state their files are in."""

from __future__ import annotations

import datetime
import json
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from eventstore import flat
from eventstore.model import ANY, DATA_IS_JSON, Event, NewEvent
from tests.spark.loading import load, reader_of
from tests.spark.made import MadeStore, commits, three_states

EPOCH = datetime.datetime(1970, 1, 1)


def as_row(event: Event) -> tuple[object, ...]:
    is_json = event[8] & DATA_IS_JSON
    return (
        event.aggregate_id, event.version, event.sequence, event.timestamp, event.type, event.data,
        event.data.decode() if is_json else None, event.metadata, event.command_id,
    )  # fmt: skip


def of_row(row: Row) -> tuple[object, ...]:
    micros = (row.timestamp - EPOCH) // datetime.timedelta(microseconds=1)
    data = bytes(row.data)
    metadata = None if row.metadata is None else bytes(row.metadata)
    return (row.aggregate_id, row.version, row.sequence, micros, row.type, data, row.data_json, metadata, row.command_id)


def told(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((of_row(row) for row in frame.collect()), key=lambda row: row[2])  # type: ignore[arg-type, return-value]


@pytest.mark.long
def test_every_event_is_read_from_sorted_completed_and_ongoing_files(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    rows = load(spark, tmp_path / "shard").collect()
    assert sorted(map(of_row, rows), key=lambda row: row[2]) == [as_row(event) for event in store.events()]  # type: ignore[arg-type, return-value]
    assert {row.shard for row in rows} == {str(tmp_path / "shard")}
    assert {row.file for row in rows} == {f"{number:010d}.events" for number in range(1, len(store.states()) + 1)}
    store.close()


@pytest.mark.long
def test_a_query_sees_what_was_there_when_it_was_planned(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    frame = load(spark, tmp_path / "shard")
    before = store.events()
    assert frame.count() == len(before)
    store.append_all(commits(30, first=1_000))
    assert len(told(load(spark, tmp_path / "shard"))) == len(store.events()) > len(before)
    store.close()


def test_partitions_planned_before_a_sort_are_read_after_it(tmp_path: Path) -> None:
    """Between planning and reading every completed file is replaced by its sorted self, and more is appended."""
    store = three_states(tmp_path / "shard")
    planned = store.events()
    reader = reader_of(tmp_path / "shard", partitionBytes=65_536)
    partitions = reader.partitions()
    store.append_all(commits(60, first=2_000))
    assert store.sort() > 3
    rows = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
    assert sorted(row["sequence"] for row in rows) == [event.sequence for event in planned]
    by_sequence = {row["sequence"]: row for row in rows}
    assert all(by_sequence[event.sequence]["data"] == event.data for event in planned)
    store.close()


def test_a_store_without_events_is_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    MadeStore(tmp_path / "shard").close()
    assert load(spark, tmp_path / "shard").collect() == []


def test_payloads_from_nothing_to_megabytes_arrive_whole(spark: SparkSession, tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard", file_size_bytes=6 * 1024 * 1024)
    sizes = [0, 1, 255, 256, 65_535, 65_536, 3_000_000, 0, 2_500_000, 7]
    for place, size in enumerate(sizes * 2):
        store.append(
            f"acc-{place}", NewEvent("Filled", bytes([place]) * size), NewEvent("Text", "x" * size), command_id=f"c-{place}"
        )
    store.sort()
    assert {"sorted", "ongoing"} <= set(store.states())
    assert told(load(spark, tmp_path / "shard")) == [as_row(event) for event in store.events()]
    store.close()


def test_tags_are_a_column_and_metadata_are_without_them(spark: SparkSession, tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    for number in range(120):
        metadata = (None, b"", b"m" * 300)[number % 3]
        tagged = NewEvent("T", bytes(200), metadata, [f"t:{each}" for each in range(number % 4)])
        store.append(f"acc-{number % 7}", tagged, NewEvent("T", b"", metadata), command_id=f"c-{number}")
    store.sort(files=1)
    assert set(store.states()) == {"sorted", "completed", "ongoing"}
    rows = load(spark, tmp_path / "shard").orderBy("sequence").collect()
    assert list(map(of_row, rows)) == [as_row(event) for event in store.events()]
    assert [tuple(row.tags) for row in rows] == [event.tags for event in store.events()]
    rows = load(spark, tmp_path / "shard").where("array_contains(tags, 't:2')").select("sequence").collect()
    assert {row.sequence for row in rows} == {event.sequence for event in store.events() if "t:2" in event.tags}
    store.close()


def test_data_that_claims_to_be_json_and_is_no_text_is_null_as_text(spark: SparkSession, tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    events = flat.encode([DATA_IS_JSON, "Odd", b"\xff\xfe", None, DATA_IS_JSON, "Fine", b"{}", None])
    store.append_all([("acc", ANY, "c", 1, events)])
    rows = load(spark, tmp_path / "shard").orderBy("sequence").collect()
    assert [(bytes(row.data), row.data_json) for row in rows] == [(b"\xff\xfe", None), (b"{}", "{}")]
    store.close()


def test_times_before_1970_and_far_ahead_are_kept_to_the_microsecond(spark: SparkSession, tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    times = [-62_135_596_800_000_000, -1, 0, 1, 253_402_300_799_999_999]
    for place, when in enumerate(times):
        store.append("acc", NewEvent("Timed"), command_id=f"c-{place}", when=when)
    frame = load(spark, tmp_path / "shard").orderBy("sequence").selectExpr("unix_micros(timestamp) as micros")
    assert [row.micros for row in frame.collect()] == times
    store.close()


def test_several_shards_are_read_by_list_and_by_glob(spark: SparkSession, tmp_path: Path) -> None:
    made = [three_states(tmp_path / f"shard-{place}", count=200 + place) for place in range(3)]
    (tmp_path / "shard-9").mkdir()  # one that is just being created
    wanted = {str(store.path): len(store.events()) for store in made}
    by_glob = load(spark, tmp_path / "shard-*").groupBy("shard").count().collect()
    assert {row.shard: row["count"] for row in by_glob} == wanted
    by_list = load(spark, made[0].path, f"file://{made[2].path}").groupBy("shard").count().collect()
    assert {row.shard: row["count"] for row in by_list} == {
        path: wanted[path] for path in (str(made[0].path), str(made[2].path))
    }
    for store in made:
        store.close()


def test_sql_users_make_a_view(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING eventstore OPTIONS (path '{tmp_path / 'shard'}')")
    [row] = spark.sql("SELECT count(*) AS n, max(version) AS v FROM events WHERE aggregate_id = 'acc-003'").collect()
    of_it = [event for event in store.events() if event.aggregate_id == "acc-003"]
    assert (row.n, row.v) == (len(of_it), len(of_it))
    spark.catalog.dropTempView("events")
    store.close()


def test_bounds_by_sequence_divide_a_store_without_gap_or_overlap(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    last = len(store.events())
    cut = [0, last // 5, last // 3, last // 2, last - 3, last]
    found = []
    for after, upto in pairwise(cut):
        bounds = {"after": json.dumps({store.uuid: after}), "upto": json.dumps({store.uuid: upto})}
        found.append(sorted(row.sequence for row in load(spark, tmp_path / "shard", columns="sequence", **bounds).collect()))
    assert found == [list(range(after + 1, upto + 1)) for after, upto in pairwise(cut)]
    store.close()
