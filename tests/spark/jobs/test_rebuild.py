"""`eventstore-spark rebuild`: the same rows as a fold one event after the other, whole or not at all, handed over live."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import eventstore as es
from eventstore import flat
from eventstore.domain.import_path import load_projection
from eventstore.domain.projections.projection import Projection, fold
from eventstore.domain.projections.projector import project
from eventstore.domain.projections.targets.postgres import PostgresTarget
from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.event_identity import event_identity
from eventstore.model import ANY, Event, NewEvent
from pyspark_eventstore.folds.counts import PartitionCounts, new_counts, total
from pyspark_eventstore.folds.distribution import ProjectionReference, folded, source_at
from pyspark_eventstore.jobs.rebuild import Rebuilt, rebuild_once
from tests.domain import postgresql
from tests.spark.balances import Balances, ByType, Precise
from tests.spark.made import MadeStore, commits, three_states

ROOT = Path(__file__).parents[3]


def place(name: str) -> ProjectionReference:
    return ProjectionReference(f"tests.spark.balances:{name}", str(ROOT))


def one_by_one(projection: Projection[Any], events: list[Event]) -> dict[str, tuple[object, ...]]:
    states: dict[str, Any] = {}
    fold(projection, states, events)
    return {key: projection.checked_row(key, state) for key, state in states.items() if state is not None}


def in_folder(spark: SparkSession, folder: Path) -> dict[str, tuple[object, ...]]:
    current = json.loads((folder / "current.json").read_text())
    columns = "key, events, amount, in_order, unix_micros(last) AS last, raw"
    rows = spark.read.parquet(str(folder / current["folder"])).selectExpr(*columns.split(", ")).collect()
    return {row.key: (row.events, row.amount, row.in_order, row.last, bytes(row.raw)) for row in rows}


def comparable(rows: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {key: (*row[:3], int(row[3].timestamp()) * 1_000_000, row[4]) for key, row in rows.items()}  # type: ignore[attr-defined]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MadeStore]:
    made = three_states(tmp_path / "shard", count=600)
    made.append("acc-004", NewEvent("Closed"), command_id="close")
    made.append("acc-005", NewEvent("Closed"), command_id="close")
    made.append("acc-005", NewEvent("Deposited", {"amount": 7}), command_id="again")
    yield made
    made.close()


def test_rows_are_those_of_a_fold_one_event_after_the_other(spark: SparkSession, store: MadeStore, tmp_path: Path) -> None:
    done = rebuild_once(spark, [str(store.path)], place("Balances"), f"parquet:{tmp_path}/out")
    wanted = one_by_one(Balances(), store.events())
    # a key that was deleted and began anew has versions that do not begin at 1, live as well as here
    assert in_folder(spark, tmp_path / "out") == comparable(wanted)
    assert "acc-004" not in wanted
    assert done == Rebuilt(store.sequence, 10, len(wanted), {store.uuid: store.sequence})
    assert done.told(1_234.56).splitlines() == [
        f"{len(store.events()):,} events of 10 keys, {len(wanted)} rows in 1,234.6 s",
        f"complete up to sequence {len(store.events())} of store {store.uuid}",
    ]


def test_another_key_than_the_aggregates_id(spark: SparkSession, store: MadeStore, tmp_path: Path) -> None:
    rebuild_once(spark, [str(store.path)], place("ByType"), f"parquet:{tmp_path}/out")
    current = json.loads((tmp_path / "out" / "current.json").read_text())
    rows = {row.key: (row.events,) for row in spark.read.parquet(str(tmp_path / "out" / current["folder"])).collect()}
    assert rows == one_by_one(ByType(), store.events())


def test_a_target_that_exists_is_only_replaced_when_told_to(spark: SparkSession, store: MadeStore, tmp_path: Path) -> None:
    target = f"parquet:{tmp_path}/out"
    rebuild_once(spark, [str(store.path)], place("Balances"), target)
    with pytest.raises(FolderRefused, match="exists; use --replace to replace it"):
        rebuild_once(spark, [str(store.path)], place("Balances"), target)
    with pytest.raises(FolderRefused, match="holds projection 'balances', not 'by_type'"):
        rebuild_once(spark, [str(store.path)], place("ByType"), target, replace=True)
    store.append_all(commits(20, first=5_000))
    rebuild_once(spark, [str(store.path)], place("Balances"), target, replace=True)
    assert in_folder(spark, tmp_path / "out") == comparable(one_by_one(Balances(), store.events()))
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["generation-000002"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("")
    with pytest.raises(FolderRefused, match="is not empty, and holds no read model"):
        rebuild_once(spark, [str(store.path)], place("Balances"), f"parquet:{tmp_path}/full", replace=True)


def test_a_projection_that_raises_is_named_with_the_event_and_leaves_nothing(
    spark: SparkSession, store: MadeStore, tmp_path: Path
) -> None:
    place_of_it = r"sequence \d+, aggregate 'acc-003', version 5, type '.*'"
    said = rf"projection '{{}}' failed at {place_of_it}: ValueError: not this one \(.*\.py:\d+\)"
    for name, table in (("Raises", "raises"), ("RaisesByAggregate", "raises_by_aggregate")):
        with pytest.raises(PySparkException, match=said.format(table)):
            rebuild_once(spark, [str(store.path)], place(name), f"parquet:{tmp_path}/out")
    assert not (tmp_path / "out" / "current.json").exists()


def test_decimals_have_the_precision_and_scale_of_their_declaration_as_live(
    spark: SparkSession, store: MadeStore, tmp_path: Path
) -> None:
    rebuild_once(spark, [str(store.path)], place("Precise"), f"parquet:{tmp_path}/out")
    current = json.loads((tmp_path / "out" / "current.json").read_text())
    found = spark.read.parquet(str(tmp_path / "out" / current["folder"]))
    assert {name: kind for name, kind in found.dtypes if kind.startswith("decimal")} == {
        "fine": "decimal(30,20)",
        "whole": "decimal(38,0)",
    }
    rebuilt = {row.key: (row.fine, row.whole, row.ratio) for row in found.collect()}
    live = one_by_one(Precise(), store.events())
    assert rebuilt == live
    assert {key: list(map(str, row)) for key, row in rebuilt.items()} == {key: list(map(str, row)) for key, row in live.items()}


def test_a_decimal_that_spark_cannot_hold_is_named_with_row_column_and_value(
    spark: SparkSession, store: MadeStore, tmp_path: Path
) -> None:
    said = r"TypeError: column 'fine' of row 'acc-\d+' is Decimal\('1E-19'\), which does not fit decimal\(38,18\): .*d\."
    with pytest.raises(PySparkException, match=said):
        rebuild_once(spark, [str(store.path)], place("TooFine"), f"parquet:{tmp_path}/out")


def test_damage_is_named_with_file_and_byte_offset_and_leaves_nothing(
    spark: SparkSession, store: MadeStore, tmp_path: Path
) -> None:
    path = store.file(1)
    raw = bytearray(path.read_bytes())
    raw[4096 + 100] ^= 0x10
    path.write_bytes(raw)
    with pytest.raises(PySparkException, match=rf"{path}: corrupt at byte offset 4096: the checksum of the record"):
        rebuild_once(spark, [str(store.path)], place("Balances"), f"parquet:{tmp_path}/out")
    assert not (tmp_path / "out" / "current.json").exists()


@pytest.mark.heavy
@pytest.mark.long
def test_one_aggregate_with_a_million_events_is_folded_like_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """In several files, and in several steps of each."""
    store = MadeStore(tmp_path / "shard", file_size_bytes=8 * 1024 * 1024)
    one, many = (flat.encode([1, "Deposited", b'{"amount":1}', None] * count) for count in (1, 1_000))
    for n in range(1_000):
        store.append_all([("hot", ANY, f"c-{n}", n, many), (f"cold-{n}", ANY, f"c-{n}", n, one)])
    assert store.sort() >= 3
    done = rebuild_once(spark, [str(store.path)], place("Balances"), f"parquet:{tmp_path}/out")
    rows = in_folder(spark, tmp_path / "out")
    assert (done.events, done.rows) == (1_001_000, 1_001)
    assert rows["hot"][:3] == (1_000_000, 1_000_000, True)
    store.close()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    with postgresql.running_server() as address:
        yield address


def in_table(address: str) -> tuple[dict[str, tuple[object, ...]], int]:
    with psycopg.connect(address) as connection:
        rows = connection.execute("SELECT key, events, amount, in_order, last, raw FROM balances").fetchall()
        [checkpoint] = connection.execute(
            "SELECT sequence FROM eventstore_checkpoints WHERE projection = 'balances'"
        ).fetchall()
    return {row[0]: (*row[1:5], bytes(row[5])) for row in rows}, checkpoint[0]


@pytest.mark.heavy
def test_a_live_projector_takes_over_from_the_table_without_gap_or_overlap(
    spark: SparkSession, tmp_path: Path, database: str
) -> None:
    """Events are appended before, while and after the rebuild, through the embedded store; then a projector follows."""
    enough = threading.Event()

    async def scenario() -> list[Event]:
        async with es.open_store(tmp_path / "shard") as store:
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    await append(store, number)

                async def keep_appending() -> None:
                    number = 300
                    while not enough.is_set():
                        await append(store, number)
                        number += 1

                nursery.start_soon(keep_appending)
                done = await trio.to_thread.run_sync(
                    lambda: rebuild_once(spark, [str(tmp_path / "shard")], place("Balances"), database)
                )
                table, checkpoint = in_table(database)
                enough.set()
            events = [event async for event in store.read_all()]
            assert {checkpoint} == set(done.upto.values())
            with psycopg.connect(database) as connection:
                found = connection.execute("SELECT identity FROM eventstore_checkpoints WHERE projection = 'balances'")
                assert found.fetchall() == [(event_identity(events[checkpoint - 1]),)]
            assert 300 <= checkpoint < len(events)
            assert table == one_by_one(Balances(), events[:checkpoint])
            assert await project(store, Balances(), PostgresTarget(database), until_caught_up=True) == len(events)
            return events

    events = trio.run(scenario)
    assert in_table(database) == (one_by_one(Balances(), events), len(events))
    with pytest.raises(FolderRefused, match="table balances: exists; use --replace"):
        rebuild_once(spark, [str(tmp_path / "shard")], place("Balances"), database)
    rebuild_once(spark, [str(tmp_path / "shard")], place("Balances"), database, replace=True)
    assert in_table(database) == (one_by_one(Balances(), events), len(events))


async def append(store: Any, number: int) -> None:
    events = [es.NewEvent("Deposited", {"amount": number}), es.NewEvent("Noted", b"\x00")]
    await store.append(f"acc-{number % 13}", events, expected_version=es.ANY, command_id=f"c-{number}")


@pytest.mark.heavy
def test_a_rebuild_that_fails_leaves_the_database_as_it_was(spark: SparkSession, store: MadeStore, database: str) -> None:
    with pytest.raises(PySparkException, match="not this one"):
        rebuild_once(spark, [str(store.path)], place("Raises"), database)
    with psycopg.connect(database) as connection:
        [[there]] = connection.execute("SELECT to_regclass('raises')").fetchall()
        assert there is None


def test_targets_that_are_none(store: MadeStore, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"--to is 'csv:x', expected parquet:FOLDER or postgresql://"):
        rebuild_once(spark, [str(store.path)], place("Balances"), "csv:x")
    (tmp_path / "file").write_text("")
    for target in (f"{tmp_path}/file/out", "nosuch://bucket/out"):
        with pytest.raises(FolderRefused, match=f"{target}: cannot be .*; choose a writable folder"):
            rebuild_once(spark, [str(store.path)], place("Balances"), f"parquet:{target}")


@pytest.mark.long
def test_what_is_computed_twice_is_counted_once(spark: SparkSession, store: MadeStore) -> None:
    """As where Spark runs a task again: accumulators by themselves would add up."""
    source = source_at([str(store.path)])
    for name, keys in (("Balances", 10), ("ByType", 5)):
        counts = new_counts(spark)
        projection = load_projection(place(name).name, place(name).folder)
        frame = folded(spark, source, projection, place(name), counts)
        rows = frame.collect()
        assert rows == frame.collect() != []
        assert total(counts) == PartitionCounts(store.sequence, keys, len(rows))


def test_a_store_without_sorted_files_goes_through_a_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    store.append_all(commits(200))
    done = rebuild_once(spark, [str(store.path)], place("Balances"), f"parquet:{tmp_path}/out")
    assert in_folder(spark, tmp_path / "out") == comparable(one_by_one(Balances(), store.events()))
    assert (done.events, done.keys) == (store.sequence, 10)
    store.close()


def test_a_store_of_which_everything_is_sorted_needs_none(spark: SparkSession, store: MadeStore) -> None:
    source = source_at([str(store.path)])
    [snapshot] = source.snapshots
    files = tuple(itertools.takewhile(lambda file: file.header.sorted, snapshot.files))
    until = files[-1].last_sequence
    source = replace(source, snapshots=(replace(snapshot, files=files, last_sequence=until),))
    frame = folded(spark, source, Balances(), place("Balances"), new_counts(spark))
    wanted = one_by_one(Balances(), store.events()[:until])
    assert {row.key: (row.events, row.amount) for row in frame.collect()} == {key: row[:2] for key, row in wanted.items()}


def test_two_shards_with_aggregates_of_their_own(spark: SparkSession, store: MadeStore, tmp_path: Path) -> None:
    other = MadeStore(tmp_path / "other")
    moved = [(f"other-{row[0]}", *row[1:]) for row in commits(300)]
    for first in range(0, 300, 20):
        other.append_all(moved[first : first + 20])
    other.sort()
    done = rebuild_once(spark, [str(store.path), str(other.path)], place("Balances"), f"parquet:{tmp_path}/out")
    wanted = one_by_one(Balances(), store.events()) | one_by_one(Balances(), other.events())
    assert in_folder(spark, tmp_path / "out") == comparable(wanted)
    assert done.events == store.sequence + other.sequence
    other.close()


BY_TYPE = "SELECT type AS key, count(*) AS events, string(count(*)) AS state FROM events GROUP BY type"


def test_a_query_makes_the_rows_that_the_fold_makes(spark: SparkSession, store: MadeStore, tmp_path: Path) -> None:
    done = rebuild_once(spark, [str(store.path)], place("ByType"), f"parquet:{tmp_path}/sql", sql=BY_TYPE)
    rebuild_once(spark, [str(store.path)], place("ByType"), f"parquet:{tmp_path}/fold")
    assert done.events == len(store.events())
    assert done.rows == 5

    def rows(folder: str) -> list[tuple[Any, ...]]:
        current = json.loads((tmp_path / folder / "current.json").read_text())
        return sorted(map(tuple, spark.read.parquet(f"{tmp_path}/{folder}/{current['folder']}").collect()))

    assert rows("sql") == rows("fold")


def test_a_table_made_by_a_query_is_continued_by_a_projector(spark: SparkSession, tmp_path: Path, database: str) -> None:
    made = three_states(tmp_path / "shard")
    made.close()
    rebuild_once(spark, [str(tmp_path / "shard")], place("ByType"), database, sql=BY_TYPE)

    async def continue_it() -> int:
        async with es.open_store(tmp_path / "shard") as store:
            before = (await store.stats())["events"]
            await store.append("acc-x", [NewEvent("Opened", {"amount": 1})], ANY)
            await project(store, ByType(), PostgresTarget(database), until_caught_up=True)
            return int(before or 0)

    before = trio.run(continue_it)
    with psycopg.connect(database) as connection:
        found = dict(connection.execute("SELECT key, events FROM by_type").fetchall())
    assert sum(found.values()) == before + 1


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT type AS key FROM events GROUP BY type", "--sql returns the columns key"),
        ("SELECT type AS key, 1 AS events FROM events", "each key has one row"),
        ("SELECT null AS key, 1 AS events", "rows with no key"),
        (
            "SELECT 'a' AS key, 1.5 AS events UNION SELECT 'b', 2.0",
            "as events of key 'a', a number that its type bigint would round",
        ),
    ],
)
def test_a_query_that_makes_no_table_is_refused(
    spark: SparkSession, store: MadeStore, tmp_path: Path, query: str, words: str
) -> None:  # fmt: skip
    with pytest.raises(InvalidArgument, match=words):
        rebuild_once(spark, [str(store.path)], place("ByType"), f"parquet:{tmp_path}/out", sql=query)
    assert not (tmp_path / "out" / "current.json").exists()


def test_a_table_to_be_continued_needs_states(spark: SparkSession, store: MadeStore, database: str) -> None:
    query = "SELECT type AS key, count(*) AS events FROM events GROUP BY type"
    with pytest.raises(InvalidArgument, match="state, as JSON, is what a projector continues from"):
        rebuild_once(spark, [str(store.path)], place("ByType"), database, sql=query, replace=True)
