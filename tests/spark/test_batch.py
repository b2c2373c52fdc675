"""`spark.read.format("eventstore")`: the same events as the store itself reads, whatever state their files are in."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from eventstore.model import DATA_IS_JSON, Event
from tests.spark.made import three_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

EPOCH = datetime.datetime(1970, 1, 1)


def load(spark: SparkSession, *paths: Path | str, **options: object) -> DataFrame:
    reader = spark.read.format("eventstore")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(paths[0]) if len(paths) == 1 else [str(path) for path in paths])


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


def test_every_event_is_read_from_sorted_completed_and_ongoing_files(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    rows = load(spark, tmp_path / "shard").collect()
    assert sorted(map(of_row, rows), key=lambda row: row[2]) == [as_row(event) for event in store.events()]  # type: ignore[arg-type, return-value]
    assert {row.shard for row in rows} == {str(tmp_path / "shard")}
    assert {row.file for row in rows} == {f"{number:010d}.events" for number in range(1, len(store.states()) + 1)}
    store.close()
