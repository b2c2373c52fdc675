"""Filters go down to files and rows: the same answer as without, and what was metrics is counted by whoever metrics it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from eventstore.model import Event
from pyspark_eventstore.files.read_metrics import ReadMetrics, sum_up
from tests.spark.loading import load
from tests.spark.made import MadeStore, commits

BASE = 1_700_000_000_000_000
FILES = 8


@dataclass(frozen=True)
class Made:
    """A store whose files hold different aggregates, and everything in it."""

    path: Path
    events: list[Event]
    sorted_files: int


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Sorted files alone: eight generations of aggregates, `acc-000` in all of them."""
    path = tmp_path_factory.mktemp("pushdown") / "shard"
    store = MadeStore(path, file_size_bytes=96 * 1024)
    number = 0
    while len(store.states()) <= FILES:
        generation = len(store.states())
        batch = commits(20, first=number, aggregates=7)
        renamed = [(f"g{generation}-{name}" if place % 10 else "acc-000", *rest) for place, (name, *rest) in enumerate(batch)]
        store.append_all(renamed)  # type: ignore[arg-type] # the same commits, under other ids
        number += 20
    store.sort()
    store.close()
    again = MadeStore(path)
    events = again.events()
    states = again.states()
    again.close()
    return Made(path, events, states.count("sorted"))


def ask(spark: SparkSession, made: Made, where: str, tmp_path: Path) -> tuple[list[int], ReadMetrics]:
    frame = load(spark, made.path, pushdown="true", report=tmp_path / "report").where(where)
    sequences = sorted(row.sequence for row in frame.collect())
    return sequences, sum_up(str(tmp_path / "report"))


def expected(made: Made, matches: Callable[[Event], bool]) -> list[int]:
    return [event.sequence for event in made.events if matches(event)]


def moment(micros: int) -> str:
    return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)).isoformat(" ")


def test_without_a_filter_every_file_and_row_is_touched_once(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(spark, made, "true", tmp_path)
    assert sequences == [event.sequence for event in made.events]
    assert metrics.files == len({1, *range(1, made.sorted_files + 2)})
    assert metrics.rows_examined == metrics.rows_read == len(made.events)


def test_an_id_of_one_file_touches_that_file_and_its_own_rows(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    wanted = expected(made, lambda event: event.aggregate_id == "g3-acc-003")
    sequences, metrics = ask(spark, made, "aggregate_id = 'g3-acc-003'", tmp_path)
    assert sequences == wanted
    assert wanted
    in_ongoing = ongoing_rows(made)
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined == len(wanted) + in_ongoing
    assert metrics.files <= 3  # at most the two that its generation spans, and the ongoing one


def ongoing_rows(made: Made) -> int:
    """Rows of the ongoing file: it has no index, and every query decodes it."""
    store = MadeStore(made.path)
    first = store.opened.engine.files.headers[-1].first_sequence
    store.close()
    return sum(event.sequence >= first for event in made.events)


def test_an_id_that_is_in_every_file_touches_only_its_own_rows(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    wanted = expected(made, lambda event: event.aggregate_id == "acc-000")
    sequences, metrics = ask(spark, made, "aggregate_id = 'acc-000'", tmp_path)
    assert sequences == wanted
    assert metrics.indexes == made.sorted_files
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined < len(made.events) // 2


def test_an_id_that_is_nowhere_touches_no_row_of_a_sorted_file(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(spark, made, "aggregate_id = 'g4-acc-0035'", tmp_path)
    assert (sequences, metrics.rows_examined) == ([], ongoing_rows(made))


def test_several_ids(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    chosen = ("g2-acc-001", "g5-acc-004", "nobody")
    wanted = expected(made, lambda event: event.aggregate_id in chosen)
    sequences, metrics = ask(spark, made, f"aggregate_id IN {chosen}", tmp_path)
    assert sequences == wanted
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined == len(wanted) + ongoing_rows(made)


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        ("aggregate_id LIKE 'g3-%'", lambda event: event.aggregate_id.startswith("g3-")),
        ("aggregate_id > 'g3-acc-005'", lambda event: event.aggregate_id > "g3-acc-005"),
        ("aggregate_id >= 'g3-acc-005' AND aggregate_id < 'g5'", lambda event: "g3-acc-005" <= event.aggregate_id < "g5"),
        ("aggregate_id <= 'acc-000'", lambda event: event.aggregate_id <= "acc-000"),
    ],
)
def test_a_range_of_ids_touches_only_its_rows(
    spark: SparkSession, made: Made, tmp_path: Path, where: str, matches: Callable[[Event], bool]
) -> None:
    wanted = expected(made, matches)
    sequences, metrics = ask(spark, made, where, tmp_path)
    assert sequences == wanted
    assert wanted
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined <= len(wanted) + ongoing_rows(made)


def test_a_type_is_decided_by_the_index_before_any_payload_is_read(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    wanted = expected(made, lambda event: event.type == "Opened")
    sequences, metrics = ask(spark, made, "type = 'Opened'", tmp_path)
    assert sequences == wanted
    assert metrics.rows_read == len(wanted) < len(made.events) // 4


def test_a_type_that_no_file_holds_examines_no_row_of_a_sorted_file(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(spark, made, "type = 'Closed'", tmp_path)
    assert (sequences, metrics.rows_examined) == ([], ongoing_rows(made))


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        ("version = 1", lambda event: event.version == 1),
        ("version IN (2, 5, 1000000)", lambda event: event.version in (2, 5)),
        ("version > 2 AND version <= 4", lambda event: 2 < event.version <= 4),
        ("aggregate_id = 'acc-000' AND version BETWEEN 4 AND 9", lambda e: e.aggregate_id == "acc-000" and 4 <= e.version <= 9),
        ("aggregate_id = 'acc-000' AND version > 1000000", lambda event: False),
        ("type IN ('Opened', 'Noted') AND version < 3", lambda event: event.type in ("Opened", "Noted") and event.version < 3),
        ("sequence < 0", lambda event: False),
    ],
)
def test_versions(spark: SparkSession, made: Made, tmp_path: Path, where: str, matches: Callable[[Event], bool]) -> None:
    wanted = expected(made, matches)
    sequences, metrics = ask(spark, made, where, tmp_path)
    assert sequences == wanted
    assert metrics.rows_read == len(wanted)


def test_a_range_of_sequences_touches_only_the_files_that_hold_it(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(spark, made, "sequence BETWEEN 100 AND 119", tmp_path)
    assert sequences == list(range(100, 120))
    assert (metrics.files, metrics.rows_examined, metrics.rows_read) == (1, 20, 20)


def test_a_range_of_time_reads_the_payloads_of_its_own_rows_only(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    low, high = BASE + 100_000_000, BASE + 140_000_000
    wanted = expected(made, lambda event: low <= event.timestamp < high)
    where = f"timestamp >= '{moment(low)}' AND timestamp < '{moment(high)}'"
    sequences, metrics = ask(spark, made, where, tmp_path)
    assert sequences == wanted
    assert wanted
    assert metrics.rows_read == len(wanted)


def test_what_spark_must_decide_itself_is_left_to_it(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    where = "aggregate_id LIKE '%-003' AND NOT type = 'Noted' AND data_json IS NOT NULL AND type IS NOT NULL"
    wanted = expected(
        made, lambda event: event.aggregate_id.endswith("-003") and event.type != "Noted" and bool(event[8] & 1)
    )  # fmt: skip
    sequences, _ = ask(spark, made, where, tmp_path)
    assert sequences == wanted
    assert wanted


def test_columns_of_the_index_alone_leave_the_event_files_closed(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    schema = "aggregate_id string, version bigint, type string"
    frame = load(spark, made.path, schema=schema, pushdown="true", report=tmp_path / "report")
    rows = frame.collect()
    assert sorted(tuple(row) for row in rows) == sorted(
        (event.aggregate_id, event.version, event.type) for event in made.events
    )
    metrics = sum_up(str(tmp_path / "report"))
    assert (metrics.files, metrics.indexes) == (1, made.sorted_files)  # the ongoing file has no index


def test_filters_are_left_to_spark_unless_asked_for(spark: SparkSession, made: Made) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = load(spark, made.path).where("aggregate_id = 'acc-000'")
        wanted = expected(made, lambda event: event.aggregate_id == "acc-000")
        assert sorted(row.sequence for row in frame.collect()) == wanted
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_frame_that_was_used_with_a_filter_has_all_rows_without_one(spark: SparkSession, made: Made) -> None:
    frame = load(spark, made.path)
    assert frame.where("aggregate_id = 'acc-000'").count() == len(expected(made, lambda event: event.aggregate_id == "acc-000"))
    assert frame.count() == len(made.events)
