"""Compares Spark over event files with Spark over Parquet: `python -m benchmarks.spark [--quick] [--json] [--only NAME,…]`.

scan      every row into a sink that drops them: the source, native Parquet without compression, a reader that yields tuples
key       all events of one aggregate, against Parquet that is sorted by aggregate and skips by its statistics
rebuild   a balance per aggregate: the sum of a number in the JSON of each event, folded by a projection in Python
shuffle   the same by a key other than the aggregate id, a quarter of the events
options   what a reader with each option opens and reads of orders, in counts
growth    the scan over 1, 4 and 16 data_folders of a quarter of the events each

All subjects read the same events with the same columns, on `local[2]`, in turns, in partitions of the same size. Ratios are
taken turn by turn: this machine drifts, its neighbours less so within a few seconds. `--quick` has so few events that fixed
costs show; it says that everything works, not how fast it is.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.harness.report import say, write_results
from benchmarks.harness.spark_data import (
    EVENTS_PER_AGGREGATE,
    ORDERS_FROM,
    aggregate,
    copy_store,
    make_orders,
    make_store,
    order_id,
    spark_settings,
)
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import UNORDERED, walk
from eventstore.domain.projections.projection import Projection, Row
from eventstore.model import Event
from eventstore.records.commit import FRAMING
from eventstore.records.event_page import decode_page
from eventstore.store.data_folder import read_identity
from pyspark_eventstore import EventStoreSource
from pyspark_eventstore.files.read_metrics import sum_up
from pyspark_eventstore.folds.distribution import ProjectionReference
from pyspark_eventstore.jobs.rebuild import rebuild_once
from pyspark_eventstore.source.table import table_schema
from pyspark_eventstore.spark_session import start_session

COLUMNS = ("aggregate_id", "version", "sequence", "timestamp", "type", "data", "command_id")
EVENTS, EVENTS_QUICK = 4_000_000, 60_000
ROUNDS, ROUNDS_QUICK = 5, 1
SLAB_BYTES = 8 * 1024 * 1024
KEYS_PER_ROUND = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Timed = Callable[[], float]


# -- the projections -------------------------------------------------------------------------------------------------------


class Balances(Projection[int]):
    """What `rebuild` measures."""

    name = "balances"
    columns: ClassVar = {"cents": int}

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: Event) -> int:
        amount: int = event.json()["amount"]
        return state + amount

    def row(self, key: str, state: int) -> Row:
        return {"cents": state}


class Totals(Balances):
    """What `shuffle` measures: the same sums by another key."""

    name = "totals"

    def key(self, event: Event) -> str:
        return event.command_id[-3:]


# -- the subjects ---------------------------------------------------------------------------------------------------------


class TupleSource(DataSource):
    """What one writes first: whole pages decoded, one tuple for each event."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> StructType:
        return table_schema(COLUMNS, permissive=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(self.options["path"])


class TupleReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._path, "events").glob("*.events"))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        file = OsFiles().open(Path(partition.value))
        position = RECORDS_FROM
        while True:
            data = memoryview(file.read_at(position, SLAB_BYTES))
            found = walk(data, position, UNORDERED, FRAMING)
            if not found.offsets:
                break
            for e in decode_page(bytes(data[: found.end - position])):
                yield e[0], e[1], e[7], _EPOCH + timedelta(microseconds=e[6]), e[2], e[3], e[5]
            position = found.end
        file.close()


def source(spark: SparkSession, *paths: Path | str, **options: str) -> DataFrame:
    reader = spark.read.format("eventstore").option("columns", ",".join(COLUMNS)).options(**options)
    return reader.option("partitionBytes", spark.conf.get("spark.sql.files.maxPartitionBytes")).load(
        [str(path) for path in paths]
    )


def drop_all(frame: DataFrame) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


# -- the benchmarks -------------------------------------------------------------------------------------------------------


def in_turns(subjects: dict[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Seconds of every subject, round by round; one round before that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        for name, run in subjects.items():
            took = run()
            if turn:
                seconds[name].append(took)
    return seconds


def ratio(seconds: dict[str, list[float]], own: str, other: str) -> float:
    """How many times as fast `own` is, round by round, the median."""
    return round(statistics.median(b / a for a, b in zip(seconds[own], seconds[other], strict=True)), 3)


def scan(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    spark.dataSource.register(TupleSource)
    ours = source(spark, folder / "shard")
    parquet = spark.read.parquet(str(folder / "parquet"))
    tuples = spark.read.format("tuples").load(str(folder / "shard"))
    seconds = in_turns(
        {"ours": lambda: drop_all(ours), "parquet": lambda: drop_all(parquet), "tuples": lambda: drop_all(tuples)}, rounds
    )
    return {
        **{f"{name}, ev/s": round(events / statistics.median(times)) for name, times in seconds.items()},
        "share of parquet": ratio(seconds, "ours", "parquet"),
        "times tuples": ratio(seconds, "ours", "tuples"),
    }


def key(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    aggregates = max(events // EVENTS_PER_AGGREGATE, 1)
    chance = random.Random(11)
    parquet = spark.read.parquet(str(folder / "sorted"))

    def look_up(of_aggregate: Callable[[str], DataFrame]) -> float:
        started = time.perf_counter()
        for _ in range(KEYS_PER_ROUND):
            rows = of_aggregate(aggregate(chance.randrange(aggregates))).collect()
            assert rows, "an aggregate without events"
        return (time.perf_counter() - started) / KEYS_PER_ROUND

    seconds = in_turns(
        {
            "ours": lambda: look_up(lambda name: source(spark, folder / "shard", aggregate_id=name)),
            "parquet": lambda: look_up(lambda name: parquet.where(f"aggregate_id = '{name}'")),
        },
        rounds,
    )
    return {
        **{f"{name}, ms": round(1_000 * statistics.median(times), 1) for name, times in seconds.items()},
        "times as long as parquet": round(1 / ratio(seconds, "ours", "parquet"), 3),
    }


def options(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    path, seconds = folder / "orders", events // 10
    make_orders(path, events)
    uuid = str(read_identity(OsFiles(), path))
    late = _EPOCH + timedelta(microseconds=ORDERS_FROM, seconds=seconds * 9 // 10)
    subjects: dict[str, dict[str, str]] = {
        "no option": {},
        "aggregate_id": {"aggregate_id": order_id(seconds // 2)},
        "aggregate_prefix": {"aggregate_prefix": "order-00"},
        "types": {"types": "Paid"},
        "endingVersion": {"endingVersion": "1"},
        "startingTimestamp": {"startingTimestamp": late.isoformat()},
        "after": {"after": json.dumps({uuid: events * 9 // 10})},
        "columns": {"columns": "aggregate_id,version,type"},
    }
    figures: dict[str, float] = {}
    for place, (name, chosen) in enumerate(subjects.items()):
        report = str(folder / f"report-{place}")
        reader = EventStoreSource({"path": str(path), "columns": ",".join(COLUMNS), "report": report, **chosen})
        scan = reader.reader(reader.schema())
        for partition in scan.partitions():
            for _ in scan.read(partition):
                pass
        metrics = sum_up(report)
        figures |= {f"{name}: files": metrics.files, f"{name}: rows": metrics.rows_read}
        figures[f"{name}: MB"] = round(metrics.bytes_read / 1e6, 2)
    return figures


def rebuild(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    return rebuilt(spark, folder / "shard", "Balances", events, rounds)


def shuffle(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    return rebuilt(spark, quarter(folder, events, 1), "Totals", events // 4, min(rounds, 2))


def rebuilt(spark: SparkSession, path: Path, projection: str, events: int, rounds: int) -> dict[str, float]:
    place = ProjectionReference(f"benchmarks.spark:{projection}", str(Path(__file__).parents[1]))

    def once() -> float:
        started = time.perf_counter()
        done = rebuild_once(spark, [str(path)], place, f"parquet:{path.parent}/{projection}", replace=True)
        assert done.events == events
        return time.perf_counter() - started

    seconds = in_turns({"ours": once}, rounds)["ours"]
    return {"ev/s": round(events / statistics.median(seconds))}


def quarter(folder: Path, events: int, number: int) -> Path:
    """A data folder with a quarter of the events; all but the first are copies of it."""
    first, path = folder / "quarter-01", folder / f"quarter-{number:02d}"
    if not first.exists():
        make_store(first, events // 4)
    if not path.exists():
        copy_store(first, path)
    return path


def growth(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    for leftover in ("parquet", "sorted"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    data_folders = [str(quarter(folder, events, number)) for number in range(1, 17)]
    frames = {count: source(spark, *data_folders[:count]) for count in (1, 4, 16)}

    def read(count: int) -> Timed:
        return lambda: drop_all(frames[count])

    seconds = {int(name): times for name, times in in_turns({str(count): read(count) for count in frames}, rounds).items()}
    best = {count: statistics.median(times) for count, times in seconds.items()}
    late, early = (best[16] - best[4]) / 12, (best[4] - best[1]) / 3
    return {
        **{f"{count * events // 4} events, ev/s": round(count * events // 4 / best[count]) for count in frames},
        "another folder takes, of many to of few": round(late / early, 3),
    }


BENCHMARKS = {"scan": scan, "key": key, "options": options, "rebuild": rebuild, "shuffle": shuffle, "growth": growth}


def run(names: list[str], events: int, rounds: int, *, quick: bool) -> dict[str, dict[str, float]]:
    figures = {}
    with tempfile.TemporaryDirectory(prefix="eventstore-spark-") as name:
        folder = Path(name)
        say(f"{events:,} events …")
        make_store(folder / "shard", events)
        spark = start_session("benchmark", "local[2]", spark_settings(name, events, quick=quick))
        spark.sparkContext.setLogLevel("ERROR")
        try:
            plain = source(spark, folder / "shard")
            if "scan" in names:
                plain.write.option("compression", "none").parquet(str(folder / "parquet"))
            if "key" in names:
                by_key = plain.repartitionByRange("aggregate_id").sortWithinPartitions("aggregate_id", "version")
                by_key.write.option("compression", "none").parquet(str(folder / "sorted"))
            for each in names:
                figures[each] = BENCHMARKS[each](spark, folder, events, rounds)
                say(f"{each}: " + ", ".join(f"{what} {value:,}" for what, value in figures[each].items()))
        finally:
            spark.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few events and rounds: that it works")
    parser.add_argument("--events", type=int, help=f"default {EVENTS:,}; with --quick {EVENTS_QUICK:,}")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}; with --quick {ROUNDS_QUICK}")
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="some of " + ", ".join(BENCHMARKS))
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    chosen = parser.parse_args()
    events = chosen.events or (EVENTS_QUICK if chosen.quick else EVENTS)
    rounds = chosen.rounds or (ROUNDS_QUICK if chosen.quick else ROUNDS)
    names = chosen.only.split(",")
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(f"unknown benchmark {min(unknown)}; choose from {', '.join(BENCHMARKS)}")
    started = time.perf_counter()
    figures = run(names, events, rounds, quick=chosen.quick)
    took = round(time.perf_counter() - started)
    document = {"benchmark": "spark", "events": events, "rounds": rounds, "seconds": took, "figures": figures}
    write_results(f"spark{'-quick' if chosen.quick else ''}", json.dumps(document, indent=2))
    if chosen.json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
