"""Spark over event files, beside Spark over Parquet: `python -m benchmarks.spark [--events N] [--rounds N] [--only NAME,…]`.

scan      every row into a sink that drops them: the source, native Parquet without compression, a reader that yields tuples
key       all events of one aggregate, against Parquet that is sorted by aggregate and skips by its statistics
rebuild   a balance per aggregate, by a fold in Python
growth    the scan, from a quarter of the events up to four times as many

All subjects read the same events with the same columns, on `local[2]`, in turns. Ratios are taken turn by turn: this machine
drifts, its neighbours less so within a few seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks import synthesis
from benchmarks.measure import RESULTS
from eventstore import flat
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import UNORDERED, walk
from eventstore.config import StoreSettings
from eventstore.domain.projection import Projection, Row
from eventstore.model import Event
from eventstore.store.appending import RawCommit
from eventstore.store.commit import HEADER_BYTES
from eventstore.store.opening import open_folder
from eventstore.store.page import decode_page
from pyspark_eventstore.rebuilding import rebuild_once
from pyspark_eventstore.session import start_session
from pyspark_eventstore.spreading import Place
from pyspark_eventstore.table import table_schema

COLUMNS = ("aggregate_id", "version", "sequence", "timestamp", "type", "data", "command_id")
EVENTS = 4_000_000
EVENTS_PER_AGGREGATE = 100
PAYLOAD_BYTES = 256
SLAB_BYTES = 8 * 1024 * 1024
KEYS_PER_ROUND = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Timed = Callable[[], float]


# -- the data -------------------------------------------------------------------------------------------------------------


def make_store(path: Path, events: int) -> None:
    """Events of 256 bytes of JSON that does not compress, all in sorted files but for the last few."""
    settings = StoreSettings(sort=False, durability="async")
    opened = open_folder(path, settings)
    pad = random.Random(7).randbytes(1 << 16).hex()
    aggregates = max(events // EVENTS_PER_AGGREGATE, 1)
    try:
        for first in range(0, events, synthesis.BATCH):
            numbers = range(first, min(first + synthesis.BATCH, events))
            synthesis.write(opened.engine, [_commit(number, aggregates, pad) for number in numbers])
            synthesis.sort_completed(opened.engine)
        _complete_last(opened.engine)
    finally:
        opened.close()


def _complete_last(engine: Any) -> None:
    """The ongoing file is not what is measured here: it holds whatever did not fill a file."""
    synthesis.sort_completed(engine)


def _commit(number: int, aggregates: int, pad: str) -> RawCommit:
    start = number * 7919 % (len(pad) - PAYLOAD_BYTES)
    head = f'{{"amount":{number % 1_000},"pad":"'
    data = f'{head}{pad[start : start + PAYLOAD_BYTES - len(head) - 2]}"}}'
    return aggregate(number % aggregates), None, f"{number:032x}", None, flat.encode((1, "Deposited", data.encode(), None))


def aggregate(place: int) -> str:
    return f"account-{place * 2_654_435_761 % 2**32:010d}"


class Balances(Projection[int]):
    """What `rebuild` measures."""

    name = "balances"
    columns: ClassVar = {"cents": int}

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: Event) -> int:
        amount: int = event.json()["amount"]  # type: ignore[assignment,call-overload,index]
        return state + amount

    def row(self, key: str, state: int) -> Row:
        return {"cents": state}


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
            found = walk(data, position, UNORDERED, HEADER_BYTES)
            if not found.offsets:
                break
            for e in decode_page(bytes(data[: found.end - position])):
                yield e[0], e[1], e[7], _EPOCH + timedelta(microseconds=e[6]), e[2], e[3], e[5]
            position = found.end
        file.close()


def source(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("eventstore").option("columns", ",".join(COLUMNS)).load(str(path))


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
    ours, parquet = source(spark, folder / "shard"), spark.read.parquet(str(folder / "sorted"))

    def look_up(frame: DataFrame) -> float:
        started = time.perf_counter()
        for _ in range(KEYS_PER_ROUND):
            rows = frame.where(f"aggregate_id = '{aggregate(chance.randrange(aggregates))}'").collect()
            assert rows, "an aggregate without events"
        return (time.perf_counter() - started) / KEYS_PER_ROUND

    seconds = in_turns({"ours": lambda: look_up(ours), "parquet": lambda: look_up(parquet)}, rounds)
    return {
        **{f"{name}, ms": round(1_000 * statistics.median(times), 1) for name, times in seconds.items()},
        "times as long as parquet": round(1 / ratio(seconds, "ours", "parquet"), 3),
    }


def rebuild(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    place = Place("benchmarks.spark:Balances", str(Path(__file__).parents[1]))

    def once() -> float:
        started = time.perf_counter()
        done = rebuild_once(spark, [str(folder / "shard")], place, f"parquet:{folder}/rebuilt", replace=True)
        assert done.events == events
        return time.perf_counter() - started

    seconds = in_turns({"ours": once}, rounds)["ours"]
    return {"ev/s": round(events / statistics.median(seconds))}


def growth(spark: SparkSession, folder: Path, events: int, rounds: int) -> dict[str, float]:
    sizes = [events // 4, events, 4 * events]
    frames = {}
    for size in sizes:
        path = folder / "shard" if size == events else folder / f"shard-{size}"
        if not path.exists():
            make_store(path, size)
        frames[size] = source(spark, path)
    seconds = in_turns({str(size): lambda size=size: drop_all(frames[size]) for size in sizes}, rounds)  # type: ignore[misc]
    rates = {size: size / statistics.median(seconds[str(size)]) for size in sizes}
    return {
        **{f"{size} events, ev/s": round(rate) for size, rate in rates.items()},
        "largest to smallest": round(rates[sizes[-1]] / rates[sizes[0]], 3),
    }


BENCHMARKS = {"scan": scan, "key": key, "rebuild": rebuild, "growth": growth}


def run(names: list[str], events: int, rounds: int) -> dict[str, dict[str, float]]:
    figures = {}
    with tempfile.TemporaryDirectory(prefix="eventstore-spark-") as name:
        folder = Path(name)
        say(f"{events:,} events …")
        make_store(folder / "shard", events)
        spark = start_session(
            "benchmark", "local[2]", {"spark.local.dir": name, "spark.driver.memory": "4g", "spark.ui.enabled": "false",
                                      "spark.ui.showConsoleProgress": "false", "spark.driver.bindAddress": "127.0.0.1",
                                      "spark.driver.host": "127.0.0.1", "spark.sql.warehouse.dir": f"{name}/warehouse"}
        )  # fmt: skip
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


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="some of " + ", ".join(BENCHMARKS))
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(f"there is no benchmark {min(unknown)}; there are {', '.join(BENCHMARKS)}")
    figures = run(names, chosen.events, chosen.rounds)
    document = {"benchmark": "spark", "events": chosen.events, "rounds": chosen.rounds, "figures": figures}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spark.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if chosen.json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
