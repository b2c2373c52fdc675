"""The source as a user loads it, and its reader as a worker has it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pyspark_eventstore import EventStoreSource
from pyspark_eventstore.source.source import EventReader


def load(spark: SparkSession, *paths: Path | str, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.read.format("eventstore")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(str(paths[0]) if len(paths) == 1 else [str(path) for path in paths])


def reader_of(path: Path | str, **options: object) -> EventReader:
    """The reader as Spark's planning process makes it, without Spark around it."""
    source = EventStoreSource({"path": str(path), **{name: str(value) for name, value in options.items()}})
    reader = source.reader(source.schema())
    assert isinstance(reader, EventReader)
    return reader
