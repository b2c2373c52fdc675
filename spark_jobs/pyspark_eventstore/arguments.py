"""Arguments that several commands share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pyspark_eventstore.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="DATA...", help="Data folders of shards, or globs.", show_default=False)
]
Master: TypeAlias = Annotated[
    str, typer.Option(help="Where Spark runs; under spark-submit leave it out.", metavar="URL", show_default=False)
]
DEFAULT_MASTER = "local[*]"


def session(name: str, master: str | None, data: list[str]) -> SparkSession:
    """A session for a command over the shards at `data`: with Spark's own progress bar, and without its log, which tells every
    failed task twice with two stack traces each. What ends a job ends the command, with a line of its own.

    Raises:
        InvalidArgument, FolderRefused, Corrupt: there are no shards; Java is missing.
    """
    import os

    from pyspark_eventstore.shards import find_shards

    find_shards(data)  # a path that is mistyped is told at once, and not after Java has started
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = start_session(f"eventstore-spark {name}", master or (None if under_submit else DEFAULT_MASTER))
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def load(spark: SparkSession, paths: list[str], columns: str, **options: str) -> DataFrame:
    """The events as the source reads them; `columns` are those that are built."""
    from pyspark_eventstore.source import EventStoreSource

    # Where the package came by --py-files, Spark does not find it by itself. Where it did, a second one would get Python
    # processes of its own, which take seconds to start.
    found: Any = spark._jsparkSession.sessionState().dataSourceManager()
    if not found.dataSourceExists(EventStoreSource.name()):
        spark.dataSource.register(EventStoreSource)
    reader = spark.read.format("eventstore").option("paths", json.dumps(paths)).option("columns", columns)
    return reader.options(**options).load()
