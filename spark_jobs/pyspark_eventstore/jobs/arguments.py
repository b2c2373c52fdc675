"""Arguments and the session that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pyspark_eventstore.spark_session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_eventstore.source.predicates import Wanted
    from pyspark_eventstore.source.snapshot import FolderSnapshot
    from pyspark_eventstore.source.source_options import Offsets

Paths: TypeAlias = Annotated[list[str], typer.Argument(metavar="DATA", help="Data folders, or globs.", show_default=False)]
Master: TypeAlias = Annotated[
    str, typer.Option(help="Spark's master; leave it out under spark-submit.", metavar="URL", show_default=False)
]
DEFAULT_MASTER = "local[*]"


def session(name: str, master: str | None) -> SparkSession:
    """Starts a session for a command: with Spark's progress bar, without its log.

    The log would report every failed task twice with two stack traces each; the command reports the error in one line.

    Raises:
        FolderRefused: Java is missing.
    """
    import os

    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = start_session(f"eventstore-spark {name}", master or (None if under_submit else DEFAULT_MASTER))
    spark.sparkContext.setLogLevel("FATAL")
    spark.sparkContext.setJobDescription(f"eventstore-spark {name}")
    return spark


def load(
    spark: SparkSession,
    snapshots: Iterable[FolderSnapshot],
    columns: Iterable[str],
    *,
    wanted: Wanted | None = None,
    after: Offsets | None = None,
    upto: Offsets | None = None,
    permissive: bool = False,
) -> DataFrame:
    """Returns the events of these snapshots as the source reads them, with these `columns`.

    Bypasses the source: Spark starts Python processes to find, create and plan it and to push filters down, which takes
    several seconds for what the command knows already.
    """
    from pyspark_eventstore.source.partition_reader import PartitionReader
    from pyspark_eventstore.source.predicates import Wanted
    from pyspark_eventstore.source.slices import bytes_per_task, partitions, plan
    from pyspark_eventstore.source.table import arrow_schema, table_schema

    wanted = wanted or Wanted()
    schema = table_schema(tuple(columns), permissive=permissive)
    snapshots = list(snapshots)
    size = bytes_per_task(snapshots, spark.sparkContext.defaultParallelism)
    found = plan(snapshots, after or {}, upto or {}, wanted, size, by_index=not permissive)
    parts = [part.slices for part in partitions(found, size)]
    numbers = spark.range(0, len(parts), 1, max(len(parts), 1))  # one for each task
    return numbers.mapInArrow(PartitionReader(parts, arrow_schema(schema), wanted, permissive=permissive), schema)
