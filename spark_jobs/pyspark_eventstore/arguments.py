"""Arguments that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pyspark_eventstore.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_eventstore.options import Offsets
    from pyspark_eventstore.predicates import Wanted
    from pyspark_eventstore.snapshot import Snapshot

Paths: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="DATA...", help="Data folders of shards, or globs.", show_default=False)
]
Master: TypeAlias = Annotated[
    str, typer.Option(help="Where Spark runs; under spark-submit leave it out.", metavar="URL", show_default=False)
]
DEFAULT_MASTER = "local[*]"


def session(name: str, master: str | None) -> SparkSession:
    """A session for a command: with Spark's own progress bar, and without its log, which tells every failed task twice with
    two stack traces each. What ends a job ends the command, with a line of its own.

    Raises:
        FolderRefused: Java is missing.
    """
    import os

    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = start_session(f"eventstore-spark {name}", master or (None if under_submit else DEFAULT_MASTER))
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def load(
    spark: SparkSession,
    snapshots: Iterable[Snapshot],
    columns: Iterable[str],
    *,
    wanted: Wanted | None = None,
    after: Offsets | None = None,
    upto: Offsets | None = None,
    permissive: bool = False,
) -> DataFrame:
    """The events that these snapshots hold, as the source reads them; `columns` are those that are built.

    Not by way of the source itself: Spark starts Python processes of their own to find it, make it, plan it and hand filters
    to it, which takes a command several seconds, and by then it knows all of that.
    """
    from pyspark_eventstore.options import PARTITION_BYTES
    from pyspark_eventstore.predicates import Wanted
    from pyspark_eventstore.reading import PartitionReader
    from pyspark_eventstore.slices import partitions, plan
    from pyspark_eventstore.table import arrow_schema, table_schema

    wanted = wanted or Wanted()
    schema = table_schema(tuple(columns), permissive=permissive)
    found = plan(snapshots, after or {}, upto or {}, wanted, PARTITION_BYTES, by_index=not permissive)
    parts = [part.slices for part in partitions(found, PARTITION_BYTES)]
    numbers = spark.range(0, len(parts), 1, max(len(parts), 1))  # one for each task
    return numbers.mapInArrow(PartitionReader(parts, arrow_schema(schema), wanted, permissive=permissive), schema)
